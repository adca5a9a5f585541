"""What a reconstructed ledger holds, and why one cannot be proven; in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

import overlay
from overlay._features.model import Feature
from overlay.errors import LedgerError
from overlay.on_disk.changes import Rebuilt
from overlay.on_disk.ledger import Entry, Ledger, reinstall
from overlay.on_disk.rebuild import rebuild
from overlay.package import VLLM, Package, package_named, parse_release
from overlay.planning import planner
from overlay.untrusted import sha256
from tests.support.patches import MemoryTree, feature, hunk, topic

RELEASE = parse_release("0.26.0")
ASCEND = package_named("vllm_ascend")
A, B, MODULE = "vllm/a.py", "vllm/b.py", "vllm/new/deep/module.py"
PRISTINE = {
    A: b"def f():\n    alone = 1\n    return 2\n",
    B: b"value = 1\nother = 2\n",
}
RECORD = {path: sha256(data) for path, data in PRISTINE.items()}
#: Change both files and add a module.
ONE = feature(
    (B, [hunk([" value = 1", "+patched_value = 2"])]),
    (A, [hunk(["     alone = 1", "-    return 2", "+    return alone + 2"], "f")]),
    id="one",
    added={MODULE: b"MODULE = 1\n"},
)
#: Stacked on the first: it changes what only that brings.
TWO = feature(
    (B, [hunk(["-patched_value = 2", "+patched_value = 3", "+another_value = 4"])]), id="two"
)


def patched(*features: Feature) -> dict[str, bytes]:
    """The files of a target in which features are applied."""
    plan = planner.plan(features, MemoryTree(PRISTINE), RELEASE)
    assert plan.changes
    return PRISTINE | {change.path: change.after or b"" for change in plan.changes}


def rebuilt(files: dict[str, bytes], *features: Feature) -> Rebuilt:
    return rebuild(features, MemoryTree(files), RELEASE, RECORD)


def refused(files: dict[str, bytes], *features: Feature) -> str:
    with pytest.raises(LedgerError) as caught:
        rebuilt(files, *features)
    return str(caught.value)


def test_a_rebuilt_ledger_holds_what_an_apply_did() -> None:
    files = patched(ONE, TWO)
    found = rebuilt(files, ONE, TWO)
    entries = tuple(
        Entry(path, RECORD.get(path), sha256(files[path]), 0o644, len(files[path]))
        for path in (A, B, MODULE)
    )
    folders = ("vllm/new", "vllm/new/deep")
    assert found.ledger == Ledger(overlay.__version__, "0.26.0", (), entries, folders, None)
    assert found.pristine == {RECORD[path]: PRISTINE[path] for path in (A, B)}


def test_features_that_were_not_applied_do_not_matter() -> None:
    assert rebuilt(patched(ONE), ONE, TWO.__class__(**vars(TWO))) == rebuilt(patched(ONE), ONE)
    elsewhere = feature(("vllm/c.py", [hunk([" x = 1", "+y = 1"])]), id="elsewhere")
    assert rebuilt(patched(ONE), elsewhere, ONE, elsewhere) == rebuilt(patched(ONE), ONE)
    assert rebuilt(PRISTINE, ONE, TWO).ledger.entries == ()


def test_topics_of_one_feature_are_undone_in_turn() -> None:
    """The second topic changes lines that only the first one brings."""
    stacked = replace(ONE, topics=(*ONE.topics, *TWO.topics))
    files = patched(ONE, TWO)
    assert rebuilt(files, stacked) == rebuilt(files, ONE, TWO)


def test_the_variant_of_the_release_is_undone() -> None:
    hunks = {
        "0.20.0..0.25.0": (B, [hunk([" value = 1", "+older_value = 2"])]),
        "0.26.0..0.33.0": (B, [hunk([" value = 1", "+newer_value = 2"])]),
    }
    two = replace(ONE, topics=(topic("01-topic", hunks, "one"),))
    assert rebuilt(patched(two), two).pristine == {RECORD[B]: PRISTINE[B]}


def test_a_variant_of_another_release_is_not_undone_though_its_lines_are_there() -> None:
    hunks = {
        "0.20.0..0.26.0": (B, [hunk([" value = 1", "+first_value = 2", "+second_value = 3"])]),
        "0.27.0..0.33.0": (B, [hunk([" value = 1", "+first_value = 2"])]),
    }
    two = replace(ONE, topics=(topic("01-topic", hunks, "one"),), added=())
    assert rebuilt(patched(two), two).pristine == {RECORD[B]: PRISTINE[B]}


def test_what_the_feature_brings_does_not_make_it_upstreams() -> None:
    told = replace(
        ONE,
        upstream_tests=feature(tests=[(B, "<module>", "patched_value")]).upstream_tests,
    )
    assert rebuilt(patched(ONE), told) == rebuilt(patched(ONE), ONE)


def test_a_line_that_comes_back_may_be_elsewhere_too() -> None:
    """Forwards it shows that a text has a hunk already; backwards RECORD proves the result."""
    lines = [" value = 1", "-something_else = 2", "+another_thing = 3"]
    one = feature((B, [hunk(lines, base_has=())]))
    pristine = b"value = 1\nsomething_else = 2\nvalue = 5\nsomething_else = 2\n"
    (change,) = planner.plan([one], MemoryTree({B: pristine}), RELEASE).changes
    assert change.after is not None
    found = rebuild([one], MemoryTree({B: change.after}), RELEASE, {B: sha256(pristine)})
    assert found.pristine == {sha256(pristine): pristine}


@pytest.mark.parametrize(
    ("pristine", "lines", "ends"),
    [
        (b"a = 1\nb = 2", [" a = 1", "-b = 2", "+b = 3"], {"pre_unfinished": True}),
        (b"a = 1\nb = 2\n", [" a = 1", "-b = 2", "+b = 3"], {"post_unfinished": True}),
    ],
)
def test_the_end_of_the_last_line_is_undone_too(
    pristine: bytes, lines: list[str], ends: dict[str, bool]
) -> None:
    one = feature((B, [hunk(lines, **ends)]))
    (change,) = planner.plan([one], MemoryTree({B: pristine}), RELEASE).changes
    assert change.after is not None
    assert change.after.endswith(b"\n") != pristine.endswith(b"\n")
    found = rebuild([one], MemoryTree({B: change.after}), RELEASE, {B: sha256(pristine)})
    assert found.pristine == {sha256(pristine): pristine}


def test_an_added_module_is_the_overlays_with_its_very_bytes_only() -> None:
    files = patched(ONE)
    shared = feature(id="shared", added={MODULE: b"MODULE = 1\n", "vllm/gone.py": b"x = 1\n"})
    assert rebuilt(files, ONE, shared) == rebuilt(files, ONE)
    absent = {"vllm/gone.py": b"x = 1\n", MODULE: b"MODULE = 1\n"}
    only_patched = replace(ONE, added=())
    several = feature(id="several", added=absent)
    assert rebuilt(files, only_patched, several) == rebuilt(files, ONE)
    told = refused({**files, MODULE: b"MODULE = 2\n"}, ONE, shared)
    assert f"out of {MODULE} does not give" in told
    told = refused({**files, MODULE: b"MODULE = 2\n", A: b"other\n"}, ONE)
    assert f"out of {A}, {B}, {MODULE} does not give" in told


def test_an_added_module_may_be_empty() -> None:
    added = feature(id="added", added={MODULE: b""})
    (entry,) = rebuilt({MODULE: b""}, added).ledger.entries
    assert entry == Entry(MODULE, None, sha256(b""), 0o644, 0)


def test_a_module_that_the_release_has_too_is_the_releases() -> None:
    files = patched(ONE)
    record = {**RECORD, MODULE: sha256(files[MODULE])}
    found = rebuild([ONE], MemoryTree(files), RELEASE, record)
    assert [entry.path for entry in found.ledger.entries] == [A, B]
    assert found.ledger.folders == ()
    beyond = feature(id="more", added={"vllm/more.py": b"x = 1\n"})
    found = rebuild(
        [ONE, beyond], MemoryTree({**files, "vllm/more.py": b"x = 1\n"}), RELEASE, record
    )
    assert [entry.path for entry in found.ledger.entries] == [A, B, "vllm/more.py"]


def test_a_folder_in_which_the_release_has_a_file_is_the_releases() -> None:
    files = patched(ONE)
    record = {**RECORD, "vllm/new/__init__.py": "0" * 64, "vllm/new/deeper/x.py": "0" * 64}
    found = rebuild([ONE], MemoryTree(files), RELEASE, record)
    assert found.ledger.folders == ("vllm/new/deep",)


def test_the_folder_of_the_package_itself_was_never_made() -> None:
    added = feature(id="added", added={"vllm/x.py": b"x = 1\n", MODULE: b"y = 1\n"})
    files = {"vllm/x.py": b"x = 1\n", MODULE: b"y = 1\n"}
    found = rebuild([added], MemoryTree(files), RELEASE, {})
    assert found.ledger.folders == ("vllm/new", "vllm/new/deep")


def test_a_file_that_the_release_does_not_list_is_left_alone() -> None:
    files = patched(ONE)
    record = {path: digest for path, digest in RECORD.items() if path != A}
    only_b = replace(ONE, topics=ONE.topics[:1])
    only_a = replace(ONE, id="a", topics=ONE.topics[1:], added=())
    found = rebuild([only_b, only_a], MemoryTree(files), RELEASE, record)
    assert [entry.path for entry in found.ledger.entries] == [B, MODULE]


def test_a_file_that_is_gone_is_the_reason_why_the_others_cannot_be_undone() -> None:
    files = {path: data for path, data in patched(ONE).items() if path != A}
    told = refused(files, ONE)
    assert f"out of {B} does not give the release's own files (expected the file {A}, " in told
    assert rebuilt({}, ONE).ledger.entries == ()


def test_what_cannot_be_proven_is_named_with_the_reason_and_what_to_do() -> None:
    files = patched(ONE)
    files[B] = b"nothing = (\n"
    assert refused(files, ONE) == (
        "the overlay's ledger is lost, and taking these patches out of "
        f"{A}, {B} does not give the release's own files (the file cannot be read: line 1: '(' "
        "was never closed (nothing = ()): they were applied by another overlay, or edited since. "
        f"Nothing was changed; {reinstall('0.26.0')}"
    )


def test_a_file_whose_undoing_gives_other_bytes_than_the_releases_is_named() -> None:
    files = patched(ONE)
    files[B] += b"appended = 1\n"
    told = refused(files, ONE)
    assert f"taking these patches out of {B} does not give the release's own files: they" in told


def test_each_reason_is_told_once() -> None:
    files = {A: b"x = (\n", B: b"x = (\n"}
    again = replace(ONE, id="again", added=())
    told = refused(files, ONE, again)
    assert told.count("the file cannot be read") == 1
    told = refused({A: b"x = (\n", B: b"y = (\n"}, ONE, again)
    because = "(the file cannot be read: line 1: '(' was never closed ({0} = ()"
    assert f"{because.format('x')}; {because.format('y')[1:]}): they were" in told


def test_without_a_release_none_is_named() -> None:
    found = rebuild([ONE], MemoryTree(PRISTINE), None, RECORD)
    assert found.ledger.release == ""
    files = {**patched(ONE), MODULE: b"other\n"}
    with pytest.raises(LedgerError) as caught:
        rebuild([ONE], MemoryTree(files), None, RECORD)
    assert str(caught.value).endswith(reinstall())


@pytest.mark.parametrize("package", [VLLM, ASCEND], ids=lambda package: package.name)
def test_each_refusal_is_about_its_package(package: Package) -> None:
    with pytest.raises(LedgerError) as caught:
        rebuild([ONE], MemoryTree({}), RELEASE, None, package)
    assert str(caught.value) == (
        "the overlay's ledger is lost, and no RECORD tells which bytes the release had. Nothing "
        f"was changed; restore {package.name}/ from where it came from (in a checkout: git "
        f"checkout -- {package.name}), and remove the folder {package.state_folder} beside it"
    )
    files = {**patched(ONE), MODULE: b"other\n"}
    with pytest.raises(LedgerError) as caught:
        rebuild([ONE], MemoryTree(files), RELEASE, RECORD, package)
    assert str(caught.value).endswith(reinstall("0.26.0", package))


def test_half_of_a_change_that_somebody_made_is_not_called_upstreams() -> None:
    texts = ("value = 1\nkept = 1\nother = 2\n", "value = 2\nkept = 1\nother = 2\n")
    both = feature((B, [hunk(["-value = 1", "+value = 2"]), hunk(["-other = 2", "+other = 3"])]))
    record = {B: sha256(texts[0].encode())}
    with pytest.raises(LedgerError) as caught:
        rebuild([both], MemoryTree({B: texts[1].encode()}), RELEASE, record)
    assert "(1 of 2 hunks are in it)" in str(caught.value)
    assert "upstream" not in str(caught.value)
