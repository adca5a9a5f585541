"""Sort the files of a foreign change: edited, added, left out, or more than a feature can carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from overlay.authoring.incoming import Commit, IncomingFile, Kind
from overlay.authoring.locating import replay
from overlay.errors import UsageError
from overlay.features.model import MODULE_SCOPE, Hunk
from overlay.package import VLLM, Package, path_problem
from overlay.planning.text import SourceText
from overlay.results import Fate

#: Folders and endings of files that a patch of an installation has no use for.
_TESTS = ("tests/", ".buildkite/", ".github/", "benchmarks/", "examples/", "tools/")
_DOCS = ("docs/",)
_DOC_ENDINGS = (".md", ".rst", ".txt")


@dataclass(frozen=True)
class FileFate:
    """What became of one file.

    :ivar base: the release whose text it was made on; ``None`` for an added module, and where only
        a checkout has the text.
    :ivar problem: why it could not be carried, with its line in the source; ``None`` if it was.
    """

    path: str
    fate: Fate
    base: str | None = None
    by_id: bool = False
    hunks: int = 0
    problem: str | None = None


def sort_files(
    commits: Sequence[Commit], partial: bool, package: Package = VLLM
) -> tuple[dict[str, list[IncomingFile]], dict[str, IncomingFile], list[FileFate]]:
    """Sort the files into those to edit and to add, by path, and the fate of those left out.

    :param partial: leave out what is not a Python module of the package.
    :param package: the one that the feature is to patch.
    :raises UsageError: naming every file that no feature can carry.
    """
    _require_package(commits, package)
    edits: dict[str, list[IncomingFile]] = {}
    added: dict[str, IncomingFile] = {}
    fates: list[FileFate] = []
    refused: list[str] = []
    for commit in commits:
        for file in commit.files:
            fate = _fate(file, package)
            if fate in (Fate.TESTS, Fate.DOCS):
                fates.append(FileFate(file.path, fate))
            elif fate is Fate.OUTSIDE:
                fates.append(FileFate(file.path, fate))
                if _leaves(file.path):
                    refused.append(
                        f"{file.place}: expected paths inside {package.name}/, found "
                        f"{file.path!r}, which leaves the folder of the change"
                    )
                elif not partial:
                    refused.append(
                        f"{file.place}: it {file.kind.value} {file.path}, which is not a Python "
                        f"module of {package.name}/: the rest is half a change (--partial takes it)"
                    )
            elif file.kind is Kind.MODIFIED and file.path in added:
                added[file.path] = _laid_on(added[file.path], file)
            elif file.kind is Kind.MODIFIED:
                edits.setdefault(file.path, []).append(file)
            elif file.kind is Kind.ADDED:
                added[file.path] = file
            else:
                renamed = file.old_path not in (None, file.path)
                was = f" (it was {file.old_path})" if renamed else ""
                refused.append(
                    f"{file.place}: it {file.kind.value} {file.path}{was}; a feature edits "
                    "modules in place and adds new ones"
                )
    if refused:
        raise UsageError("\n".join(refused))
    return edits, added, fates


def _require_package(commits: Sequence[Commit], package: Package) -> None:
    """Refuse a change of another project, none of whose files the package could have.

    :raises UsageError: naming its first file.
    """
    files = [file for commit in commits for file in commit.files]
    folder = f"{package.name}/"
    if all(_fate(file, package) is Fate.OUTSIDE and folder not in file.path for file in files):
        file = files[0]
        raise UsageError(
            f"{file.place}: expected a change of {package.title}, whose Python lies in {folder}, "
            f"found one of {file.path}"
        )


def _leaves(path: str) -> bool:
    """Whether a path leads out of the folder that it is relative to."""
    return path.startswith(("/", "\\")) or ".." in path.replace("\\", "/").split("/")


def _fate(file: IncomingFile, package: Package) -> Fate:
    path = file.path
    if path_problem(path, package) is not None and _leaves(path):
        return Fate.OUTSIDE
    if path.startswith(_TESTS):
        return Fate.TESTS
    if path.startswith(_DOCS) or ("/" not in path and path.endswith(_DOC_ENDINGS)):
        return Fate.DOCS
    if path_problem(path, package) is not None:
        return Fate.OUTSIDE
    return Fate.ADDED if file.kind is Kind.ADDED else Fate.EDITED


def _laid_on(first: IncomingFile, then: IncomingFile) -> IncomingFile:
    """An added file with a later commit's edit of it."""
    after = replay(added_content(first), then.hunks)
    if after is None:
        raise UsageError(
            f"{then.place}: its hunks do not fit {then.path} as the commit before "
            "left it; import the commits in their order"
        )
    text = SourceText.from_bytes(after)
    lines = tuple(("+", line) for line in text.lines)
    hunk = Hunk(MODULE_SCOPE, lines, 1, then.line, post_unfinished=not text.final_newline)
    return replace(first, hunks=(hunk,), new_blob=then.new_blob)


def added_content(file: IncomingFile) -> bytes:
    """The bytes of an added file."""
    lines = [text for hunk in file.hunks for op, text in hunk.lines if op == "+"]
    unfinished = bool(file.hunks) and file.hunks[-1].post_unfinished
    text = "\n".join(lines) + ("" if unfinished or not lines else "\n")
    return text.encode("utf-8", "surrogateescape")
