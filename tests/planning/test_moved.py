"""Where upstream moved what a patch changes: the place is named, and nothing lands there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from packaging.version import Version

from overlay.errors import TargetError
from overlay.planning.moved import MOST, likely
from overlay.planning.planner import plan
from overlay.results import State
from tests.support.patches import MemoryTree, feature, hunk

OLD, NEW = "vllm/models/deepseek.py", "vllm/models/deepseek/layers.py"
TEXT = b"import os\n\n\ndef f(x):\n    y = first(x)\n    return y\n"
CHANGED = TEXT.replace(b"    return", b"    z = second(y)\n    return")
LINES = ["     y = first(x)", "+    z = second(y)", "     return y"]


class Listed(MemoryTree):
    """A tree that tells its files."""

    def paths(self) -> Sequence[str]:
        """All of them."""
        return tuple(self.files)


def reason(files: dict[str, bytes], scope: str = "f") -> tuple[State, str]:
    made = feature((OLD, [hunk(LINES, scope)._replace(base_has=())]))
    (result,) = plan([made], Listed(files), Version("0.26.0")).features
    (file,) = result.files
    return result.state, str(file.reason or file.hunks[0].reason)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (CHANGED, f"1 of the 1 lines that it adds are in {NEW}"),
        (TEXT, f"its lines before the change are in {NEW}, in f"),
        (TEXT.replace(b" y", b" why"), f"f is in {NEW}"),
    ],
)
def test_a_file_that_was_moved_is_named(text: bytes, place: str) -> None:
    state, why = reason({NEW: text, "vllm/v1/other.py": CHANGED})
    assert state is State.MISSING
    assert place in why


def test_a_scope_that_was_moved_is_named() -> None:
    state, why = reason({OLD: b"value = 1\n", NEW: TEXT})
    assert state is State.MISSING
    assert f"its lines before the change are in {NEW}, in f" in why


def test_where_nothing_is_like_it_nothing_is_said() -> None:
    assert "; " not in reason({"vllm/other.py": TEXT})[1].partition("found none")[0]
    assert NEW not in reason({NEW: b"def g():\n    return 1\n"})[1]
    assert NEW not in reason({NEW: b"def f(:\n"})[1]  # not Python


def test_a_tree_that_tells_no_files_is_not_searched() -> None:
    made = feature((OLD, [hunk(LINES, "f")]))
    (result,) = plan([made], MemoryTree({NEW: TEXT}), Version("0.26.0")).features
    assert NEW not in str(result.files[0].reason)


def test_few_files_are_read_and_the_likeliest_first() -> None:
    paths = [f"vllm/models/file_{number}.py" for number in range(100)]
    found = likely(OLD, [*paths, NEW, "vllm/v1/deepseek.py", "vllm/models/deepseek.cu", OLD])
    assert len(found) == MOST
    assert found[:2] == [NEW, "vllm/v1/deepseek.py"] or found[:2] == ["vllm/v1/deepseek.py", NEW]
    assert OLD not in found


def test_a_file_that_cannot_be_read_is_no_hint_and_no_error() -> None:
    class Refusing(Listed):
        def read(self, path: str) -> bytes | None:
            if path == NEW:
                raise TargetError("it is a pipe")
            return super().read(path)

    made = feature((OLD, [hunk(LINES, "f")._replace(base_has=())]))
    other = "vllm/v1/deepseek.py"
    (result,) = plan([made], Refusing({NEW: TEXT, other: TEXT}), Version("0.26.0")).features
    assert f"are in {other}, in f" in str(result.files[0].reason)
