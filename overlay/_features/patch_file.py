"""Read one ``.patch`` file: DEP-3 headers, then a unified diff of one path.

Or what becomes of the whole file: other bytes in its place, or its removal, of one text only, which
the patch names by git's id or holds in full.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from overlay._features.binary_patch import BinaryPatchError, read_binary
from overlay._features.model import FILE_SCOPE, Hunk, Patch, WholeFile, blob_id
from overlay._features.patch_headers import read_headers, way
from overlay._features.patch_hunks import FORBIDDEN, WHOLE, Source, read_hunks
from overlay.errors import PatchFormatErrors
from overlay.package import VLLM, Package, file_problem, is_module

#: The ids of a file before and after; git asks for them in full where it has no lines to compare.
_IDS = re.compile(r"^index (?P<old>[0-9a-f]{40})\.\.(?P<new>[0-9a-f]{40})(?: \d+)?$")

_NONE = "0" * 40

_REMOVED = re.compile(r"^@@ -1(?:,(?P<count>[0-9]{1,9}))? \+0,0 @@(?: <file>)?$")


def parse_patch(text: str, name: str, package: Package = VLLM) -> Patch:
    """Read a patch.

    :param text: the content of the file.
    :param name: the file relative to its patches folder, for messages and reports.
    :param package: the package that it has to be for.
    :raises PatchFormatErrors: with every malformed place.
    """
    source = Source.of(text, name)
    headers = read_headers(source)
    header = _read_file_header(source, package)
    hunks = () if header is None else _read_change(source, header)
    if "Base" in headers:
        stated_lines = (headers.get(name, "").split("\n") for name in ("Base-Has", "Tells-Nothing"))
        base_has = tuple(dict.fromkeys(line for lines in stated_lines for line in lines if line))
        hunks = tuple(hunk._replace(base_has=base_has) for hunk in hunks)
    if source.errors:
        raise PatchFormatErrors(sorted(source.errors, key=lambda error: error.line or 0))
    assert header is not None  # no path is an error
    return Patch(name, header.path, headers, hunks, way(headers.get("Ported-From")))


class _FileHeader(NamedTuple):
    """What the lines before the hunks say.

    :ivar ids: the line with git's ids, and its number; :ivar removes: whether the file goes.
    :ivar binary: whether its bytes are said in git's form for whole files.
    """

    path: str
    ids: tuple[int, str]
    removes: bool
    binary: bool


def _read_change(source: Source, header: _FileHeader) -> tuple[Hunk, ...]:
    """The hunks behind a header, or the one that stands for a whole file."""
    if not (header.binary or header.removes):
        hunks = read_hunks(source)
        _expect_scopes(source, header.path, hunks)
        return hunks
    read = _read_binary_file if header.binary else _read_removed_text
    change = read(source, header.ids, removes=header.removes)
    _expect_end(source)
    return () if change is None else (change,)


def _expect_scopes(source: Source, path: str, hunks: tuple[Hunk, ...]) -> None:
    """Refuse names of scopes in a data file, and hunks of a module that name none."""
    what, scope = "a module", "a name, or <module>,"
    if not is_module(path):
        what, scope = "a data file, which has no scopes", FILE_SCOPE
    for hunk in hunks:
        if (hunk.scope == FILE_SCOPE) is is_module(path):
            source.error(
                hunk.patch_line,
                f"{path} is {what}: expected {scope} behind the second @@, found {hunk.scope!r}",
            )


def _read_file_header(source: Source, package: Package) -> _FileHeader | None:
    """The path that the patch is for, and what becomes of the file; ``None`` after an error."""
    git_line: tuple[int, str] | None = None
    ids, removes, binary = (source.at + 1, ""), False, False
    first = f"expected '--- a/{package.name}/...'"
    while not (source.ended or binary) and not source.line.startswith(("--- ", "+++ ", "@@ ")):
        line, number = source.take()
        forbidden = next((why for start, why in FORBIDDEN if line.startswith(start)), None)
        if forbidden is not None:
            source.error(number, f"a patch only edits or removes one file, and {forbidden}")
        elif line.startswith("diff --git ") and git_line is None:
            git_line = (number, line)
        elif line.startswith("index "):
            ids = (number, line)
        elif line.startswith(WHOLE) and git_line is not None:
            removes, binary = removes or line.startswith(WHOLE[0]), line == WHOLE[1]
        elif line.strip() or git_line is not None:
            # Behind "diff --git" git takes an empty line for the end of an empty diff.
            source.error(number, f"{first}, found {line!r}")
    if source.ended:
        if not source.errors:
            source.error(None, f"it holds no diff: {first} after the headers")
        return None
    if binary:
        path = _binary_path(source, git_line, package)
    else:
        path = _read_sides(source, package, removes=removes)
    if path is None:
        return None
    _expect_path(source, path, git_line, package)
    return _FileHeader(path, ids, removes, binary)


def _expect_path(
    source: Source, path: str, git_line: tuple[int, str] | None, package: Package
) -> None:
    """Refuse a path that git's line does not name, or that no patch may reach."""
    if git_line is not None and git_line[1] != f"diff --git a/{path} b/{path}":
        source.error(git_line[0], f"{git_line[1]!r} does not name a/{path} and b/{path}")
    problem = file_problem(path, package)
    if problem is not None:
        source.error(source.at, f"the path {problem}")


def _binary_path(source: Source, git_line: tuple[int, str] | None, package: Package) -> str | None:
    """The path of a file that is replaced as a whole, which stands in git's line alone."""
    number, line = git_line or (source.at, "")
    both = line.removeprefix("diff --git ")
    half = len(both) // 2
    if both[:2] == "a/" and both[half:] == f" b/{both[2:half]}":
        return both[2:half]
    source.error(number, f"expected 'diff --git a/{package.name}/... b/...' of one path")
    return None


def _read_sides(source: Source, package: Package, *, removes: bool) -> str | None:
    """The path behind ``---`` and ``+++``; ``None`` after an error."""
    before = _read_side(source, "---", "a/", package)
    if removes and before is not None and not source.ended and source.line == "+++ /dev/null":
        source.at += 1
        return before
    after = _read_side(source, "+++", "b/", package)
    if before is None or after is None:
        return None
    if removes:
        source.error(source.at, f"it deletes {before}: expected '+++ /dev/null'")
        return None
    if before != after:
        source.error(
            source.at,
            f"it renames {before} to {after}; remove the old one (deleted file mode) and put the "
            "new one under files/",
        )
        return None
    return before


def _read_side(source: Source, sign: str, prefix: str, package: Package) -> str | None:
    """The path behind ``---`` or ``+++``, without its prefix; ``None`` after an error."""
    number = source.at + 1
    line = "" if source.ended else source.line
    expected = f"'{sign} {prefix}{package.name}/...'"
    if not line.startswith(sign + " "):
        source.error(number, f"expected {expected}, found {line!r}")
        return None
    source.at += 1
    path = line[4:].split("\t")[0].rstrip()
    if path == "/dev/null":
        what = (
            "creates a file; put the module under files/"
            if sign == "---"
            else "deletes one without git's line 'deleted file mode 100644'"
        )
        source.error(number, f"a patch only edits or removes one file, and this one {what}")
    elif not path.startswith(prefix):
        source.error(number, f"expected {expected}, found {line!r}: the prefix {prefix} is missing")
    else:
        return path[len(prefix) :]
    return None


def _read_binary_file(source: Source, index: tuple[int, str], *, removes: bool) -> Hunk | None:
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


def _read_removed_text(source: Source, index: tuple[int, str], *, removes: bool) -> Hunk | None:
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


def _expect_end(source: Source) -> None:
    """Refuse lines behind the change of a whole file, but the signature of git format-patch."""
    while not source.ended:
        line, number = source.take()
        if line in ("-- ", "--"):
            return
        if line.strip():
            source.error(number, f"expected the end of the patch, found {line!r}")
            return
