"""A base that nothing proves lacks the change, and what is only guessed is told."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import pytest
from packaging.version import Version

from overlay._features.model import Feature, blob_id
from overlay.authoring.building import Prepared
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.authoring.writing import check_folder
from overlay.planning.planner import plan
from overlay.results import Outcome, State
from tests.support.patches import MemoryTree

PATH = "vllm/v1/factory.py"


def registered(*names: str) -> bytes:
    """A module that ends with a call for each name, all of one form."""
    head = "class Factory:\n    tiers = {}\n\n\n"
    calls = (
        f'Factory.register(\n    "{name}",\n    "vllm.v1.tiers.{name}",\n    lazily=True,\n)\n'
        for name in names
    )
    return (head + "\n".join(calls)).encode()


def diff(before: bytes, after: bytes) -> bytes:
    """A diff that names no blobs."""
    old, new = (text.decode().splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{PATH}", f"b/{PATH}")).encode()


def imported(data: bytes, releases: Mapping[str, bytes]) -> Prepared:
    names = tuple(releases)
    texts = ReleaseTexts(names, lambda name: MemoryTree({PATH: releases[name]}))
    change = read_changes(data, "x.diff")
    return prepare(change, "change", texts, source="x.diff", verbatim=data, today="2026-11-25")


def feature_of(made: Prepared) -> Feature:
    assert made.folder is not None
    return check_folder(made.folder)


def states(feature: Feature, releases: Mapping[str, bytes]) -> list[State]:
    """The feature's state on each release."""
    return [
        plan([feature], MemoryTree({PATH: text}), Version(name)).features[0].state
        for name, text in releases.items()
    ]


def test_code_that_was_appended_is_not_appended_again() -> None:
    """Behind it upstream appended more that ends alike, so that the text before fits there too."""
    releases = {
        "0.21.0": registered("cpu"),
        "0.22.0": registered("cpu", "disk"),
        "0.23.0": registered("cpu", "disk", "net"),
        "0.24.0": registered("cpu", "disk", "net", "tape"),
    }
    made = imported(diff(releases["0.21.0"], releases["0.22.0"]), releases)
    assert made.summary.files[0].base == "0.21.0"
    assert made.summary.merged == "0.22.0"
    feature = feature_of(made)
    assert states(feature, releases) == [State.PRISTINE, *[State.UPSTREAMED] * 3]


def test_where_every_release_has_it_that_is_said() -> None:
    releases = {
        "0.23.0": registered("cpu", "disk", "net"),
        "0.24.0": registered("cpu", "disk", "a"),
    }
    made = imported(diff(registered("cpu"), registered("cpu", "disk")), releases)
    assert made.folder is None
    (file,) = made.summary.files
    assert file.problem is not None
    assert "(0.23.0, 0.24.0) has its new lines already" in file.problem
    assert "--base" in file.problem


def test_what_upstream_took_back_is_a_warning_and_not_remembered() -> None:
    before, after = registered("cpu"), registered("cpu", "disk")
    releases = {"0.21.0": before, "0.22.0": after, "0.23.0": before}
    made = imported(diff(before, after), releases)
    assert made.summary.merged is None
    (warning,) = made.summary.warnings
    assert "upstream has the change in 0.22.0, and yet it lands exactly on 0.23.0" in warning
    assert "took it back" in warning


def test_a_change_of_a_text_that_came_back_serves_the_releases_before_too() -> None:
    """By its id the newest release with that text is its base, behind those with the change."""
    before, after = registered("cpu"), registered("cpu", "disk")
    other = registered("other", "cpu", "disk")
    numbers = ("0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0", "0.26.0")
    releases = dict(zip(numbers, (before, other, before, after, after, before), strict=True))
    ids = f"index {blob_id(before)}..{blob_id(after)} 100644\n"
    made = imported(f"diff --git a/{PATH} b/{PATH}\n{ids}".encode() + diff(before, after), releases)
    assert made.summary.files[0].base == "0.26.0"
    feature = feature_of(made)
    assert str(feature.releases) == "0.21.0..0.26.0"
    has = {"0.22.0", "0.24.0", "0.25.0"}
    expected = [State.UPSTREAMED if name in has else State.PRISTINE for name in releases]
    assert states(feature, releases) == expected


def test_the_newest_release_before_the_change_is_its_base() -> None:
    """Line numbers alone would choose an older one, and lose its neighbours."""
    before = b"import os\n" + registered("cpu")
    releases = {
        "0.20.0": registered("cpu"),
        "0.21.0": b"import os\nimport sys\n" + registered("cpu"),
        "0.22.0": b"import os\nimport sys\n" + registered("cpu", "disk"),
    }
    made = imported(diff(before[10:], registered("cpu", "disk")), releases)
    assert made.summary.files[0].base == "0.21.0"


def test_a_line_that_every_release_has_elsewhere_does_not_prevent_the_import() -> None:
    """The same argument in two calls: nothing is known of it, and the text around it decides."""
    call = "def serve(args):\n    first = Chat(\n        name=args.name,\n        kind=1,\n    )\n"
    more = call + "    last = Render(\n        kind=2,\n        size=args.size,\n    )\n"
    before = f"{more}    return first, last\n".encode()
    after = before.replace(b"        kind=2,\n", b"        kind=2,\n        name=args.name,\n")
    releases = {"0.21.0": before, "0.22.0": before + b"\n\nlater = 1\n", "0.23.0": after}
    made = imported(diff(before, after), releases)
    feature = feature_of(made)
    assert made.folder is not None
    (patch,) = (data for name, data in made.folder.files.items() if name[0].isdigit())
    assert b"\nTells-Nothing: name=args.name,\n" in patch
    assert b"Base-Has" not in patch
    assert states(feature, releases) == [State.PRISTINE, State.PRISTINE, State.UPSTREAMED]


def test_check_port_and_import_agree_where_a_line_of_code_is_missing() -> None:
    """Upstream took the change but for one line: each of them asks, none retires it."""
    before = b"def f(x):\n    start(x)\n    return x\n"
    lines = [f"    step_{number} = work({number})\n".encode() for number in range(6)]
    after = before.replace(b"    return", b"".join(lines) + b"    return")
    theirs = before.replace(b"    return", b"".join(lines[:3] + lines[4:]) + b"    return")
    releases = {"0.21.0": before, "0.22.0": theirs}
    made = imported(diff(before, after), releases)
    assert made.summary.merged is None
    assert made.summary.outcomes["0.22.0"] is not Outcome.UPSTREAM
    feature = feature_of(made)
    (result,) = plan([feature], MemoryTree({PATH: theirs}), Version("0.22.0")).features
    assert result.state.needs_attention
    assert "missing: 'step_3 = work(3)'" in str(result.files[0].hunks[0].reason)
    texts = ReleaseTexts(tuple(releases), lambda name: MemoryTree({PATH: releases[name]}))
    port = Porter(texts).port(feature, "0.22.0")
    assert port.outcome is not Outcome.UPSTREAM
    assert not port.evidence


def test_one_line_that_was_appended_is_not_appended_again() -> None:
    """Behind itself, too, its context is found: the diff ends with the file."""
    before = b"class Config:\n    first: int\n    # the second\n    second: int\n"
    after = before + b"\n    # of a third one\n    third: int = measure(3)\n"
    later = after + b"\n    fourth: int = 4\n"
    releases = {"0.21.0": before, "0.22.0": after, "0.23.0": later}
    made = imported(diff(before, after), releases)
    assert made.summary.files[0].base == "0.21.0"
    assert states(feature_of(made), releases) == [State.PRISTINE, *[State.UPSTREAMED] * 2]
    alone = imported(diff(before, after), {"0.22.0": after})
    assert alone.folder is None
    assert "has its new lines already" in str(alone.summary.files[0].problem)


def test_a_copy_of_a_line_that_only_some_releases_have_is_not_dropped_unseen() -> None:
    """The change fits an older release without that line, too; the guessed base has it."""
    body = ["def f(x):", "    start(x)", "    first = 1", "    second = 2"]
    tail = ["    third = 3", "    fourth = 4", "    fifth = 5", "    sixth = 6"]
    new = ["    total = count(x)", "    summed = add(total)"]
    texts = {
        "0.20.0": [*body, *tail],
        "0.21.0": [*body, *tail, "    flush(x)"],
        "0.22.0": [*body, *new, *tail, "    flush(x)"],
    }
    releases = {name: ("\n".join(lines) + "\n").encode() for name, lines in texts.items()}
    mine = "\n".join([*body, *new, "    flush(x)", *tail, "    flush(x)"]) + "\n"
    made = imported(diff(releases["0.21.0"], mine.encode()), releases)
    assert made.summary.files[0].base == "0.21.0"
    assert states(feature_of(made), releases)[:2] == [State.PRISTINE, State.PRISTINE]
    assert states(feature_of(made), releases)[2].needs_attention


@pytest.mark.parametrize("names", [("0.21.0", "0.22.0", "0.23.0"), ("0.22.0", "0.23.0")])
@pytest.mark.parametrize("at_end", [True, False])
def test_code_at_an_end_with_a_line_of_ones_own_is_not_put_in_again(
    names: tuple[str, ...], *, at_end: bool
) -> None:
    """Its context is found behind upstream's lines, too, and the own line is in no release."""
    old, own = "First = one(1)\nSecond = two(2)\nThird = three(3)\n", "own = measured(7)\n"
    new = "FALLBACK = tuple(First)\n"

    def beside(lines: str) -> bytes:
        return (old + lines if at_end else lines + old).encode()

    later = beside(new) + b"Last = 4\n" if at_end else b"Zero = 0\n" + beside(new)
    texts = {"0.21.0": beside(""), "0.22.0": beside(new), "0.23.0": later}
    releases = {name: texts[name] for name in names}
    made = imported(diff(texts["0.21.0"], beside(new + own if at_end else own + new)), releases)
    if len(names) == 2:
        assert made.folder is None
        assert "has its new lines already" in str(made.summary.files[0].problem)
        return
    assert made.summary.files[0].base == "0.21.0"
    feature = feature_of(made)
    assert states(feature, releases)[0] is State.PRISTINE
    for name in names[1:]:
        (result,) = plan([feature], MemoryTree({PATH: texts[name]}), Version(name)).features
        assert result.state not in (State.PRISTINE, State.UPSTREAMED)


#: Two functions of one name that are alike, as behind a flag or a failed import.
_TWINS = b"""if FLAG:
    def run(x):
        with lock:
            x += 1
        return x
        end(x)
else:
    def run(x):
        with lock:
            x += 1
        return x
        end(x)
"""


def test_a_twin_of_the_changed_function_is_not_taken_for_it() -> None:
    """A release that changed the first function holds the lines of the hunk in the second alone."""
    mine = _TWINS.replace(b"        return x\n", b"        return x\n        work(1)\n", 1)
    releases = {
        "0.21.0": _TWINS,
        "0.22.0": _TWINS.replace(b"        return x\n", b"        return x\n        theirs()\n", 1),
        "0.23.0": mine,
    }
    narrow = (
        f"--- a/{PATH}\n+++ b/{PATH}\n@@ -5,2 +5,3 @@\n"
        "         return x\n+        work(1)\n         end(x)\n"
    )
    made = imported(narrow.encode(), releases)
    assert made.summary.files[0].base == "0.21.0"
    feature = feature_of(made)
    (planned,) = plan([feature], MemoryTree({PATH: _TWINS}), Version("0.21.0")).changes
    assert planned.after == mine


def test_a_line_that_stands_once_more_is_not_put_in_a_third_time() -> None:
    """Where no new line tells anything, the release that lacks the post-image is the base."""
    line = "    self.a = x\n\n"
    base = f"def f(x):\n    use(x)\n{2 * line}    x = 1\n    return x\n".encode()
    mine = base.replace(line.encode(), (2 * line).encode(), 1)
    releases = {"0.21.0": base, "0.22.0": mine + b"\n\ndef g(x):\n    return x\n"}
    change = (
        f"--- a/{PATH}\n+++ b/{PATH}\n@@ -2,4 +2,6 @@\n     use(x)\n"
        "+    self.a = x\n+\n     self.a = x\n \n     self.a = x\n"
    )
    made = imported(change.encode(), releases)
    assert made.summary.files[0].base == "0.21.0"
    assert states(feature_of(made), releases)[1] is not State.PRISTINE


_NAMES = "".join(f"    Name{number},\n" for number in range(8))
_FAR = "y = 1\n" * 9
_METHOD = "    def f(\n        self,\n        a: int,\n        b: int,\n        c: int,\n    ):\n"
_METHOD += "        work(self)\n"
_LAST = f"class B:\n    z = 1\n\n{_METHOD}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            f"from a import (\n    First,\n)\nfrom old import (\n{_NAMES})\nfrom z import y\n",
            f"from new import (\n{_NAMES})\nfrom a import (\n    First,\n)\nfrom z import y\n",
            id="imports in another order",
        ),
        pytest.param(
            f"class A(Old):\n    x: int\n\n\nclass B:\n    pass\n\n\n{_FAR}",
            f"class B:\n    pass\n\n\n{_FAR}\n\nclass A(B):\n    x: int\n",
            id="a class that goes behind its new base",
        ),
        pytest.param(
            f"class A:\n{_METHOD}        self.x = 1\n\n\n{_FAR}\n\n{_LAST}",
            f"class A:\n{_METHOD}\n\n{_FAR}\n\n{_LAST}\n\n{_LAST.replace('B', 'C')}",
            id="a class with another one's method",
        ),
    ],
)
def test_what_a_change_moves_was_there_before(before: str, after: str) -> None:
    """Lines that it takes away elsewhere do not show that a release has the change."""
    head, tail = "import os\n\nuse(os)\n", "\n\ndef end(x):\n    return x\n"
    releases = {
        name: (head + text + tail).encode()
        for name, text in (("0.21.0", before), ("0.22.0", after))
    }
    made = imported(diff(releases["0.21.0"], releases["0.22.0"]), releases)
    assert made.summary.files[0].base == "0.21.0"
    assert states(feature_of(made), releases) == [State.PRISTINE, State.UPSTREAMED]
