"""What decode reads of each part of a ledger, and what it refuses and why."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from overlay.errors import LedgerError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature, LedgerLost, RecordEntry
from overlay.package import VLLM, Package, package_named
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State

ASCEND = package_named("vllm_ascend")


def full(package: Package) -> Ledger:
    """A ledger with every field that there is, each of another value."""
    reason = Reason("a text", "a next step", "a cause")
    hunk = HunkResult("A.b", State.DRIFTED, 7, reason, (0, 9))
    plain_hunk = HunkResult("<module>", State.APPLIED, None, None, ())
    path = f"{package.name}/made/new.py"
    file = FileResult(path, State.DRIFTED, "10-a/1.patch", (hunk, plain_hunk), reason)
    plain_file = FileResult(f"{package.name}/a.py", State.APPLIED, None, (), None)
    features = (
        LedgerFeature(
            "digest",
            "origin",
            FeatureResult("first", State.DRIFTED, (file, plain_file), reason, True),
            "5" * 64,
        ),
        LedgerFeature("other", "else", FeatureResult("second", State.UPSTREAMED), None),
    )
    entries = (
        Entry(path, None, "1" * 64, 0o640, 11),
        Entry(f"{package.name}/a.py", "2" * 64, "3" * 64, 0o755, 2**53 - 1),
    )
    record = RecordEntry("a.dist-info/RECORD", "4" * 64, "6" * 64)
    folders = (f"{package.name}/made",)
    return Ledger("0.1.0", "0.26.0", features, entries, folders, record)


def written(package: Package = VLLM) -> dict[str, Any]:
    """The document of a full ledger."""
    document: dict[str, Any] = json.loads(ledgers.encode(full(package)))
    return document


def decoded(document: object, package: Package = VLLM) -> Ledger:
    return ledgers.decode(json.dumps(document).encode(), "the/ledger.json", package)


def with_value(way: str, value: object, package: Package = VLLM) -> dict[str, Any]:
    """A full ledger's document in which one value is another one.

    :param way: the names and numbers that lead to it, with blanks between.
    """
    document: Any = written(package)
    part = document
    *above, last = [int(name) if name.isdigit() else name for name in way.split()]
    for name in above:
        part = part[name]
    part[last] = value
    return cast("dict[str, Any]", document)


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_every_field_is_read_as_it_was_written(package: Package) -> None:
    assert decoded(written(package), package) == full(package)
    without = full(package)._replace(record=None, features=())
    assert decoded(json.loads(ledgers.encode(without)), package) == without


FILE, HUNK = "features 0 files 0", "features 0 files 0 hunks 0"
LONG = "a" * 64
REFUSED: dict[str, tuple[str, object, str]] = {
    "a folder of a module that was not added": (
        "folders 0",
        "vllm/v1",
        "ValueError: 'vllm/v1' holds no added module, so an apply did not make it",
    ),
    "the folder of the package": (
        "folders 0",
        "vllm",
        "ValueError: 'vllm' is not a folder inside vllm/, and an apply could not have made it",
    ),
    "a folder elsewhere": (
        "folders 0",
        "other/made",
        "ValueError: 'other/made/__init__.py' lies outside vllm/, and an apply could not have made",
    ),
    "a folder that leaves": ("folders 0", "vllm/../x", "path 'vllm/../x' leaves the target"),
    "a folder that is a number": ("folders 0", 5, "TypeError: expected text, found 5"),
    "a record of nobody": (
        "record path",
        "vllm/RECORD",
        "ValueError: 'vllm/RECORD' is not the RECORD of a distribution beside the package",
    ),
    "a record that leaves": ("record path", "../RECORD", "path '../RECORD' leaves the target"),
    "a record of no hash before": ("record before", None, "expected text, found None"),
    "a record of no hash after": ("record after", "abc", "ValueError: 'abc' is not a sha256"),
    "a file outside": (
        "entries 0 path",
        "other/x.py",
        "ValueError: 'other/x.py' lies outside vllm/, and an apply could not have changed it",
    ),
    "a file that leaves": ("entries 0 path", "vllm/./x.py", "path 'vllm/./x.py' leaves the target"),
    "a path twice": ("entries 0 path", "vllm/a.py", "ValueError: it lists a path twice"),
    "a hash of capitals": ("entries 1 before", "A" * 64, f"'{'A' * 64}' is not a sha256"),
    "a hash too long": ("entries 1 after", LONG + "a", f"'{LONG}a' is not a sha256"),
    "a hash that is none": ("entries 1 after", None, "TypeError: expected text, found None"),
    "a mode that is true": ("entries 0 mode", True, "expected a whole number, found True"),
    "a mode below none": ("entries 0 mode", -1, "TypeError: expected a whole number, found -1"),
    "a size that is large": (
        "entries 0 size",
        2**53,
        f"TypeError: expected a whole number, found {2**53}",
    ),
    "a size with a fraction": ("entries 0 size", 1.0, "expected a whole number, found 1.0"),
    "a size in a text": ("entries 0 size", "1", "expected a whole number, found '1'"),
    "an overlay without a version": ("overlay", None, "TypeError: expected text, found None"),
    "a release that is a number": ("release", 0.26, "TypeError: expected text, found 0.26"),
    "a digest that is none": ("features 0 digest", None, "expected text, found None"),
    "an origin that is none": ("features 0 origin", None, "expected text, found None"),
    "a source that is no hash": ("features 0 source", "x", "ValueError: 'x' is not a sha256"),
    "a feature without a name": ("features 0 feature", None, "expected text, found None"),
    "a feature in no state": ("features 0 state", "fine", "'fine' is not a valid State"),
    "a patched file in no state": (f"{FILE} state", "fine", "'fine' is not a valid State"),
    "a patch that is a number": (f"{FILE} patch", 3, "TypeError: expected text, found 3"),
    "a patched file outside": (
        f"{FILE} path",
        "other/x.py",
        "ValueError: 'other/x.py' lies outside vllm/, so no feature has it",
    ),
    "a patched file that leaves": (f"{FILE} path", "vllm/", "path 'vllm/' leaves the target"),
    "a scope that is none": (f"{HUNK} scope", None, "TypeError: expected text, found None"),
    "a hunk in no state": (f"{HUNK} state", "fine", "'fine' is not a valid State"),
    "a line that is true": (f"{HUNK} line", True, "expected a whole number, found True"),
    "a candidate that is none": (f"{HUNK} candidates 1", None, "expected a whole number"),
    "a reason of no text": (f"{HUNK} reason text", None, "expected text, found None"),
    "a next step that is a number": (f"{HUNK} reason next_step", 2, "expected text, found 2"),
    "a cause that is none": (f"{FILE} reason cause", None, "expected text, found None"),
    "a reason that is a text": ("features 0 reason", "why", "AttributeError: "),
    "a schema of old": ("schema", 0, "ValueError: schema is 0, expected 2"),
    "a schema that is true": ("schema", True, "ValueError: schema is True, expected 2"),
    "a schema in a text": ("schema", "2", "ValueError: schema is '2', expected 2"),
    "a schema that is none": ("schema", None, "ValueError: schema is None, expected 2"),
}


@pytest.mark.parametrize(("way", "value", "said"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_no_apply_writes_is_refused(way: str, value: object, said: str) -> None:
    with pytest.raises(LedgerLost) as caught:
        decoded(with_value(way, value))
    told = str(caught.value)
    assert told.startswith("the/ledger.json is damaged (")
    assert said in told
    assert ledgers.reinstall() in told


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_a_path_of_the_other_package_is_refused(package: Package) -> None:
    other = ASCEND if package is VLLM else VLLM
    for way, value in (
        ("entries 0 path", f"{other.name}/made/new.py"),
        ("folders 0", f"{other.name}/made"),
        (f"{FILE} path", f"{other.name}/a.py"),
    ):
        with pytest.raises(LedgerLost, match=f"lies outside {package.name}/") as caught:
            decoded(with_value(way, value, package), package)
        assert ledgers.reinstall(package=package) in str(caught.value)


OPTIONAL = ("cause", "source")


def test_a_field_that_is_missing_is_damage() -> None:
    """All but the two that older overlays did not write."""
    for way in (
        *("", "entries 0", "record", "features 0", "features 0 files 0"),
        *(HUNK, f"{HUNK} reason", f"{FILE} reason", "features 0 reason"),
    ):
        names = list(_part(written(), way))
        for name in names:
            document = written()
            del _part(document, way)[name]
            if name in OPTIONAL:
                assert decoded(document) != full(VLLM)
                continue
            with pytest.raises(LedgerLost, match=f"is damaged .KeyError: '{name}'"):
                decoded(document)


def _part(document: Any, way: str) -> dict[str, Any]:
    for name in way.split():
        document = document[int(name) if name.isdigit() else name]
    return cast("dict[str, Any]", document)


def test_what_older_overlays_did_not_write_is_unknown() -> None:
    document = written()
    del document["features"][0]["source"]
    del document["features"][0]["reason"]["cause"]
    (feature, _) = decoded(document).features
    assert feature.source is None
    assert feature.result.reason == Reason("a text", "a next step")


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        (None, None),
        ("", None),
        ("it is so", Reason("it is so")),
        ("it is so; next: mend it", Reason("it is so", "mend it")),
        ("it is; next: mend; next: it", Reason("it is", "mend; next: it")),
        ("it is so; next: ", Reason("it is so")),
        ("; next: mend it", None),
    ],
)
def test_a_reason_of_schema_1_is_a_text_with_the_next_step_behind_a_mark(
    why: str | None, reason: Reason | None
) -> None:
    document = with_value("schema", 1)
    for way in ("features 0", FILE, HUNK):
        part = _part(document, way)
        del part["reason"]
        part["why"] = why
    (feature, _) = decoded(document).features
    file = feature.result.files[0]
    assert feature.result.reason == file.reason == file.hunks[0].reason == reason


def test_a_reason_of_schema_1_that_is_no_text_is_refused() -> None:
    with pytest.raises(LedgerLost, match="expected text, found 5"):
        decoded(with_value("features 0 why", 5))


def test_only_the_permissions_of_a_mode_are_kept() -> None:
    ledger = decoded(with_value("entries 0 mode", 0o100777))
    assert ledger.entries[0].mode == 0o777


@pytest.mark.parametrize("newer", [4, 10**9])
def test_a_ledger_of_a_newer_overlay_says_which_one_to_use(newer: int) -> None:
    document = {"schema": newer, "overlay": "7.0.0"}
    with pytest.raises(LedgerError) as caught:
        decoded(document)
    assert not isinstance(caught.value, LedgerLost)
    assert str(caught.value) == (
        f"the/ledger.json was written by a newer overlay (vllm-overlay 7.0.0, schema {newer}; "
        "this one, schema 3). Nothing was changed; use that version of vllm-overlay, or a newer one"
    )


def test_a_removed_file_has_no_hash_and_is_no_added_one() -> None:
    document = with_value("entries 1 after", None) | {"schema": 3}
    assert decoded(document).entries[1].after is None
    document["entries"][1]["before"] = None
    with pytest.raises(LedgerLost, match="is neither changed nor added"):
        decoded(document)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_ledger_at_all_is_damage(data: bytes) -> None:
    with pytest.raises(LedgerLost, match=r"^the/ledger\.json is damaged"):
        ledgers.decode(data, "the/ledger.json")


@pytest.mark.parametrize("hexadecimal", ["0123456789abcdef" * 4, "f" * 64])
def test_a_hash_is_64_hexadecimal_digits(hexadecimal: str) -> None:
    assert ledgers.require_sha256(hexadecimal) == hexadecimal
    for other in (hexadecimal[:-1], hexadecimal + "0", "g" + hexadecimal[1:], ""):
        with pytest.raises(ValueError, match=f"^'{other}' is not a sha256$"):
            ledgers.require_sha256(other)
    with pytest.raises(TypeError, match="expected text, found None"):
        ledgers.require_sha256(None)


def test_its_text_is_the_same_for_equal_ledgers_and_plain_ascii() -> None:
    data = ledgers.encode(full(VLLM)._replace(release="0.26.0 é"))
    assert data == ledgers.encode(full(VLLM)._replace(release="0.26.0 é"))
    assert data.isascii()
    assert data.endswith(b"\n")
    assert json.loads(data)["schema"] == ledgers.SCHEMA
