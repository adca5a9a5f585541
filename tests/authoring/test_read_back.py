"""What a feature's folder says is read back and compared with the change before it is written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.folder import load
from overlay.authoring import disk
from overlay.authoring.writing import FeatureFolder, check_folder, write_folder
from overlay.errors import OverlayError
from overlay.planning.planner import plan
from tests.authoring.test_composing import changes
from tests.authoring.test_import_laws import PATH, RELEASE, SLOW, git_diff, imported
from tests.support.faults import FaultyOs, faulty
from tests.support.patches import MemoryTree

MODULES = st.dictionaries(
    st.sampled_from(["vllm/v1/a.py", "vllm/v1/b/__init__.py", "vllm/v1/b/c.py", "vllm/é.py"]),
    st.lists(st.sampled_from(["A = 1", "", "# é \u2028 \x0c", "B = '\x1c'", "if A: pass"])).flatmap(
        lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
    ),
    max_size=3,
)


def added_diff(path: str, text: str) -> bytes:
    """The diff of an added file as git writes it."""
    unfinished = not text.endswith("\n") and bool(text)
    lines = text.split("\n")[: None if unfinished else -1]
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
    if not lines:
        return head.encode()
    body = "".join(f"+{line}\n" for line in lines)
    end = "\\ No newline at end of file\n" if unfinished else ""
    return f"{head}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}{end}".encode()


@st.composite
def written_changes(draw: st.DrawFn) -> tuple[dict[str, bytes], bytes, bytes]:
    """A release that is changed: its file, added modules, and the diff of both.

    The lines end in one way or the other, the last one perhaps not at all, and the diff may lack
    the blob ids by which the base would be known, or any context.
    """
    before, after = draw(changes())
    if draw(st.booleans()):
        before, after = (text.replace(b"\n", b"\r\n") for text in (before, after))
    assume(before != after)
    diff = git_diff(before, after, ids=draw(st.booleans()), context=draw(st.integers(0, 4)))
    modules = draw(MODULES)
    diff += b"".join(added_diff(path, text) for path, text in modules.items())
    made = {PATH: after, **{path: text.encode() for path, text in modules.items()}}
    return made, before, diff


def folder_of(diff: bytes, before: bytes) -> FeatureFolder:
    """The folder that the import of a change would write."""
    made = imported(diff, before)
    assume(made is not None)
    assert made is not None
    assert made.folder is not None
    return made.folder


@SLOW
@given(written_changes())
def test_what_was_written_makes_the_change_when_a_later_command_reads_it(
    change: tuple[dict[str, bytes], bytes, bytes],
) -> None:
    """Law 1, from disk to disk."""
    made, before, diff = change
    folder = folder_of(diff, before)
    with TemporaryDirectory() as place:
        write_folder(folder, Path(place))
        (feature,) = load([Path(place)])
    planned = plan([feature], MemoryTree({PATH: before}), Version(RELEASE))
    assert {change.path: change.after for change in planned.changes} == made


@SLOW
@given(written_changes(), st.data())
def test_a_disk_that_keeps_other_bytes_than_it_was_given_is_noticed(
    change: tuple[dict[str, bytes], bytes, bytes], data: st.DataObject
) -> None:
    """Whichever file it is: what lay there stays, and nothing is left beside it."""
    _, before, diff = change
    folder = folder_of(diff, before)
    files = folder.all_files()
    number = data.draw(st.integers(1, len([text for text in files.values() if text])))
    at = data.draw(st.integers(0, 1 << 20))

    class Altering(FaultyOs):
        """A disk that turns over a bit of what it is given."""

        def __getattr__(self, name: str) -> Any:
            return self.altered if name == "write" else super().__getattr__(name)

        def altered(self, file: int, given: bytes) -> int:
            self.names.append("write")
            kept = bytearray(given)
            if self.names.count("write") == number:
                kept[at % len(kept)] ^= 1
            return os.write(file, kept)

    with TemporaryDirectory() as name:
        place = Path(name)
        write_folder(folder, place)
        (feature,) = load([place])
        with (
            faulty(Altering(), disk),
            pytest.raises(OSError, match="what was written is not read back"),
        ):
            write_folder(folder, place, update=True)
        assert load([place]) == (feature,)
        assert os.listdir(place) == ["change"]


@SLOW
@given(changes(), MODULES)
def test_what_is_read_back_makes_the_change_and_its_modules(
    texts: tuple[bytes, bytes], modules: dict[str, str]
) -> None:
    """Law 1, read back: the folder that would be written has each hunk and each module."""
    before, after = texts
    assume(before != after)
    data = git_diff(before, after, ids=True)
    data += b"".join(added_diff(path, text) for path, text in modules.items())
    made = imported(data, before)
    assume(made is not None)
    assert made is not None
    assert made.folder is not None
    feature = check_folder(made.folder)
    assert {file.path: file.content for file in feature.added} == {
        path: text.encode() for path, text in modules.items()
    }
    planned = plan([feature], MemoryTree({PATH: before}), Version(RELEASE))
    assert {change.path: change.after for change in planned.changes} == {
        PATH: after,
        **{path: text.encode() for path, text in modules.items()},
    }


BASE, AFTER = b"a = 1\nb = 2\nc = 3\n", b"a = 1\nb = 4\nc = 3\n"


def test_a_folder_that_does_not_make_the_change_is_not_written(tmp_path: Path) -> None:
    data = git_diff(BASE, AFTER, ids=True) + added_diff("vllm/v1/a.py", "A = 1\n")
    made = imported(data, BASE)
    assert made is not None
    folder = made.folder
    assert folder is not None
    kept = dict(folder.files)
    (patch,) = (name for name in kept if name.startswith("10-") and name.endswith(".patch"))
    harms: list[dict[str, bytes]] = [
        {patch: kept[patch].replace(b"+b = 4", b"+b = 5")},
        {patch: kept[patch].replace(b"+b = 4", b"+b =  4")},
        {"files/vllm/v1/.a.py": b"A = 1\n"},
        {"files/vllm/__pycache__/a.py": b"A = 1\n"},
    ]
    for harm in harms:
        damaged = replace(folder, files={**kept, **harm})
        with pytest.raises(OverlayError, match=r"read back it does not|would not be read"):
            write_folder(damaged, tmp_path)
        assert not list(tmp_path.iterdir())
    write_folder(folder, tmp_path)
    assert (tmp_path / "change/files/vllm/v1/a.py").read_bytes() == b"A = 1\n"
