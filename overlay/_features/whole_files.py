"""Read what becomes of a whole file in a ``.patch`` file: other bytes in its place, or its removal.

Either is for one text only, which the patch names by git's id or holds in full.
"""

from __future__ import annotations

import re

from overlay._features.binary_patch import BinaryPatchError, read_binary
from overlay._features.model import FILE_SCOPE, Hunk, WholeFile, blob_id
from overlay._features.patch_source import Source

#: The ids of a file before and after; git asks for them in full where it has no lines to compare.
_IDS = re.compile(r"^index (?P<old>[0-9a-f]{40})\.\.(?P<new>[0-9a-f]{40})(?: \d+)?$")

_NONE = "0" * 40

_REMOVED = re.compile(r"^@@ -1(?:,(?P<count>[0-9]{1,9}))? \+0,0 @@(?: <file>)?$")


def read_binary_file(source: Source, index: tuple[int, str], *, removes: bool) -> Hunk | None:
    """The change of a whole file in git's form; ``None`` after an error.

    :param index: the line with git's ids, and its number; :param removes: whether the file goes.
    """
    begin = source.at
    try:
        binary, source.at = read_binary(source.lines, source.at)
    except BinaryPatchError as error:
        source.error(error.at + 1, str(error))
        source.at = len(source.lines)
        return None
    ids = _IDS.match(index[1])
    problem = None
    if ids is None or ids["old"] == _NONE or (ids["new"] == _NONE) is not removes:
        problem = (
            "expected 'index OLD..NEW' with git's ids of the file before and after in full (git "
            f"diff --full-index --binary), found {index[1]!r}"
        )
    elif binary.is_delta:
        problem = "expected the new bytes as a literal, found a delta of the old ones"
    elif removes and binary.data:
        problem = "it removes the file and gives it bytes"
    elif not removes and blob_id(binary.data) != ids["new"]:
        problem = "its bytes are not those that its index line names"
    elif ids["old"] == ids["new"]:
        problem = "it changes nothing"
    if problem is not None or ids is None:
        source.error(index[0], problem or "")
        return None
    whole = WholeFile(ids["old"], None if removes else binary.data)
    return Hunk(FILE_SCOPE, (), 1, begin, whole=whole)


def read_removed_text(source: Source, index: tuple[int, str], *, removes: bool) -> Hunk | None:
    """The removal of a file whose text the patch holds; ``None`` after an error.

    :param index: the line with git's ids, which the text has to have where they are in full.
    """
    assert removes
    line, number = source.take() if not source.ended else ("", source.at)
    match = _REMOVED.match(line)
    if match is None:
        source.error(number, f"expected '@@ -1,LINES +0,0 @@' with all of the file, found {line!r}")
        source.at = len(source.lines)
        return None
    lines: list[str] = []
    while not source.ended and source.line.startswith("-") and len(lines) < int(match[1] or 1):
        lines.append(source.take()[0][1:])
    if len(lines) != int(match[1] or 1):
        source.error(number, f"the header promises {match[1] or 1} lines, found {len(lines)}")
    end = "\n"
    if not source.ended and source.line.startswith("\\"):
        source.take()
        end = ""
    before = ("\n".join(lines) + end).encode()
    ids = _IDS.match(index[1])
    if ids is not None and ids["old"] != blob_id(before):
        source.error(index[0], "the text that it removes is not the one that its index line names")
    return Hunk(FILE_SCOPE, (), 1, number, whole=WholeFile.of(before, None))


def expect_end(source: Source) -> None:
    """Refuse lines behind the change of a whole file, but the signature of git format-patch."""
    while not source.ended:
        line, number = source.take()
        if line in ("-- ", "--"):
            return
        if line.strip():
            source.error(number, f"expected the end of the patch, found {line!r}")
            return
