"""Read one ``.patch`` file: DEP-3 headers, then a unified diff of one path."""

from __future__ import annotations

from overlay._features.model import Patch
from overlay._features.patch_headers import read_headers, way
from overlay._features.patch_hunks import read_hunks
from overlay._features.patch_source import FORBIDDEN, Source
from overlay.errors import PatchFormatErrors
from overlay.package import VLLM, Package, path_problem


def parse_patch(text: str, name: str, package: Package = VLLM) -> Patch:
    """Read a patch.

    :param text: the content of the file.
    :param name: the file relative to its patches folder, for messages and reports.
    :param package: the package that it has to be for.
    :raises PatchFormatErrors: with every malformed place.
    """
    source = Source.of(text, name)
    headers = read_headers(source)
    path = _read_file_header(source, package)
    hunks = read_hunks(source) if path is not None else ()
    if "Base" in headers:
        stated_lines = (headers.get(name, "").split("\n") for name in ("Base-Has", "Tells-Nothing"))
        base_has = tuple(dict.fromkeys(line for lines in stated_lines for line in lines if line))
        hunks = tuple(hunk._replace(base_has=base_has) for hunk in hunks)
    if source.errors:
        raise PatchFormatErrors(sorted(source.errors, key=lambda error: error.line or 0))
    assert path is not None  # no path is an error
    return Patch(name, path, headers, hunks, way(headers.get("Ported-From")))


def _read_file_header(source: Source, package: Package) -> str | None:
    """The path that the patch is for; ``None`` if it cannot be told."""
    git_line: tuple[int, str] | None = None
    first = f"expected '--- a/{package.name}/...'"
    while not source.ended and not source.line.startswith(("--- ", "+++ ", "@@ ")):
        line, number = source.take()
        forbidden = next((why for start, why in FORBIDDEN if line.startswith(start)), None)
        if forbidden is not None:
            source.error(number, f"a patch only edits one file, and {forbidden}")
        elif line.startswith("diff --git ") and git_line is None:
            git_line = (number, line)
        elif not line.startswith("index ") and (line.strip() or git_line is not None):
            # Behind "diff --git" git takes an empty line for the end of an empty diff.
            source.error(number, f"{first}, found {line!r}")
    if source.ended:
        if not source.errors:
            source.error(None, f"it holds no diff: {first} after the headers")
        return None
    before = _read_side(source, "---", "a/", package)
    after = _read_side(source, "+++", "b/", package)
    if before is None or after is None:
        return None
    if before != after:
        source.error(source.at, f"it renames {before} to {after}; a patch edits one file in place")
        return None
    if git_line is not None and git_line[1] != f"diff --git a/{before} b/{before}":
        source.error(git_line[0], f"{git_line[1]!r} does not name a/{before} and b/{before}")
    problem = path_problem(before, package)
    if problem is not None:
        source.error(source.at, f"the path {problem}")
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
        what = "creates a file; put the module under files/" if sign == "---" else "deletes one"
        source.error(number, f"a patch only edits one file, and this one {what}")
    elif not path.startswith(prefix):
        source.error(number, f"expected {expected}, found {line!r}: the prefix {prefix} is missing")
    else:
        return path[len(prefix) :]
    return None
