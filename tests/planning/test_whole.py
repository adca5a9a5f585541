"""Changes of whole files: removals, other bytes, and the importers that a removal leaves behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.binary_patch import BinaryPatchError, literal, read_binary
from overlay._features.model import FILE_SCOPE, Feature, Hunk, WholeFile, blob_id
from overlay.planning.matching import match_whole
from overlay.planning.planner import plan
from overlay.results import FeatureResult, State
from overlay.targets import left_out
from tests.support.patches import MemoryTree, feature, hunk

INIT = "vllm/__init__.py"
MODULE = "vllm/v1/old.py"
CONFIG = "vllm/kernels/h100.json"
FILES = {
    INIT: b"",
    MODULE: b"def old():\n    return 1\n",
    CONFIG: b'{\n  "block": 16\n}\n',
}
RELEASE = Version("0.26.0")


def whole(path: str, after: bytes | None, id_: str = "demo") -> Feature:
    """A feature that replaces or removes a file."""
    change = Hunk(FILE_SCOPE, (), 1, 1, whole=WholeFile.of(FILES[path], after))
    return feature((path, [change]), id=id_)


def state_of(each: Feature, files: dict[str, bytes], record: dict[str, str] | None = None):
    return plan([each], MemoryTree(files), RELEASE, record).features[0]


@pytest.mark.parametrize("after", [None, b"\0other"])
@pytest.mark.parametrize(
    ("there", "state"),
    [
        ("after", State.UPSTREAMED),
        (b"def old():\n    return 2\n", State.DRIFTED),
        (FILES[MODULE], State.PRISTINE),
    ],
)
def test_a_change_of_a_whole_file_is_for_one_text(
    there: bytes | str, state: State, after: bytes | None
) -> None:
    data = after if isinstance(there, str) else there
    files = {**FILES, MODULE: data} if data is not None else {INIT: b""}
    # A module's new bytes must compile; those of a data file need not.
    result = state_of(whole(MODULE, after), files)
    if after is not None and state is State.PRISTINE:
        assert "does not compile" in str(result.files[0].reason)
    else:
        assert result.state is state
    (judged,) = result.files[0].hunks
    assert judged.scope == FILE_SCOPE
    assert (judged.reason is not None) is (state is State.DRIFTED)
    if judged.reason is not None:
        way = "remove" if after is None else "replace"
        assert f"id {blob_id(FILES[MODULE])[:12]}, the only text that it may {way}, found" in str(
            judged.reason
        )


def test_a_file_that_somebody_took_away_is_missing() -> None:
    files = {INIT: b""}
    assert state_of(whole(MODULE, None), files, {MODULE: "0" * 64}).state is State.MISSING
    assert state_of(whole(CONFIG, b"{}\n"), files).state is State.MISSING
    judged = match_whole(WholeFile.of(FILES[CONFIG], b"{}\n"), None)
    assert judged.state is State.MISSING
    assert f"git's id {blob_id(FILES[CONFIG])[:12]}, found none" in str(judged.reason)


def test_data_files_need_not_compile_nor_be_python() -> None:
    edit = hunk([" {", '-  "block": 16', '+  "block": 32', " }"], FILE_SCOPE)
    each = feature((CONFIG, [edit]), added={"vllm/chat.jinja": b"{% if x %}\n"})
    answer = plan([each], MemoryTree(FILES), RELEASE)
    assert answer.state is State.PRISTINE
    assert {change.path: change.after for change in answer.changes} == {
        CONFIG: b'{\n  "block": 32\n}\n',
        "vllm/chat.jinja": b"{% if x %}\n",
    }
    assert each.changes_on_disk_only == ("vllm/chat.jinja", CONFIG)
    assert state_of(each, {**FILES, "vllm/chat.jinja": b"{% if y %}\n"}).state is State.DRIFTED


@pytest.mark.parametrize("order", [1, -1])
def test_features_clash_where_one_removes_what_the_other_edits(order: int) -> None:
    edit = hunk([" def old():", "-    return 1", "+    return 2"], "old")
    both = [whole(MODULE, None, "one"), feature((MODULE, [edit]), id="two")][::order]
    results = plan(both, MemoryTree(FILES), RELEASE).features
    assert {result.state for result in results} == {State.DRIFTED}
    for result in results:
        assert "cannot be applied together" in _reasons(result)


def _reasons(result: FeatureResult) -> str:
    (file,) = result.files
    return str([file.reason, *(each.reason for each in file.hunks)])


def test_a_file_whose_bytes_no_release_keeps_is_not_judged_and_stops_nothing_else() -> None:
    class Texts(MemoryTree):
        def read(self, path: str) -> bytes | None:
            if path == CONFIG:
                raise left_out(path)
            return super().read(path)

    edit = hunk([" def old():", "-    return 1", "+    return 2"], "old")
    both = [whole(CONFIG, b"\0"), feature((MODULE, [edit]), id="two")]
    results = plan(both, Texts(FILES), RELEASE).features
    assert [result.state for result in results] == [State.DRIFTED, State.PRISTINE]
    assert "name the folder instead" in _reasons(results[0])


class Listed(MemoryTree):
    def paths(self) -> list[str]:
        return sorted(self.files)


@pytest.mark.parametrize(
    "line",
    [
        "import vllm.v1.old\n",
        "from vllm.v1 import a, old\n",
        "from vllm.v1 import (\n    a,\n    old,\n)\n",
        "from .old import f\n",
        "from . import old\n",
        'NAME = "vllm.v1.old"\n',
        "    from ..v1.old import f\n",
    ],
)
def test_importers_that_are_left_behind_are_named(line: str) -> None:
    tree = Listed({**FILES, "vllm/v1/user.py": b"def f():\n    pass\n\n\n" + line.encode()})
    removal = whole(MODULE, None)
    (notice,) = plan([removal], tree, RELEASE).notices
    assert notice.path == MODULE
    assert "vllm/v1/user.py still names it" in notice.text
    tree.files["vllm/v1/user.py"] = b"from vllm.v1.older import old_one\nold = 1\n"
    assert not plan([removal], tree, RELEASE).notices
    tree.files["vllm/v1/user.py"] = b"from vllm.v1 import old\n"
    edit = hunk(["-from vllm.v1 import old", "+from vllm.v1 import new"])
    other = feature(("vllm/v1/user.py", [edit]), id="other")
    assert not plan([removal, other], tree, RELEASE).notices


@given(data=st.binary(max_size=300), rest=st.integers(0, 5))
def test_a_literal_is_read_back(data: bytes, rest: int) -> None:
    lines = [*literal(data), *["x"] * rest]
    read, at = read_binary(lines, 1)
    assert (read.applied(b""), at) == (data, len(lines) - rest)


@given(data=st.binary(min_size=1, max_size=60), at=st.integers(0, 9), new=st.text(max_size=9))
def test_a_damaged_literal_is_refused_or_makes_as_many_bytes(
    data: bytes, at: int, new: str
) -> None:
    lines = literal(data)
    lines[1 + at % (len(lines) - 1)] = new
    try:
        read, _ = read_binary(lines, 1)
    except BinaryPatchError as error:
        line = error.at
        assert 1 <= line <= len(lines)
    else:
        assert len(read.data) in (len(data), 0)


@pytest.mark.parametrize("size", ["16777217", "9999999999", "-1", "x", "\u0661"])
def test_no_size_is_believed(size: str) -> None:
    with pytest.raises(BinaryPatchError):
        read_binary(["GIT binary patch", f"literal {size}", "HcmV?d00001", ""], 1)


def test_a_bomb_is_not_unpacked() -> None:
    lines = literal(bytes(1 << 20))
    lines[1] = "literal 5"
    with pytest.raises(BinaryPatchError, match="expected 5 bytes"):
        read_binary(lines, 1)


def test_a_module_in_whose_place_an_added_package_is_imported_is_named() -> None:
    package = "vllm/v1/old/__init__.py"
    tree = Listed({**FILES, "vllm/v1/user.py": b"from vllm.v1 import old\n"})
    (notice,) = plan([feature(added={package: b""})], tree, RELEASE).notices
    assert notice.path == MODULE
    assert f"Python imports {package} in its place" in notice.text
    removal = Hunk(FILE_SCOPE, (), 1, 1, whole=WholeFile.of(FILES[MODULE], None))
    moved = feature((MODULE, [removal]), added={package: b""})
    assert plan([moved], tree, RELEASE).notices == ()
