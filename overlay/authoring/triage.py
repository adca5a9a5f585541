"""Sort the files of a foreign change: edited, added, left out, or more than a feature can carry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from unicodedata import normalize

from overlay._features.model import MODULE_SCOPE, Hunk
from overlay._features.sources import unread
from overlay.authoring.incoming import ChangeKind, Commit, IncomingFile
from overlay.authoring.locating import replay
from overlay.errors import UsageError, command, told_once
from overlay.package import (
    VLLM,
    Package,
    file_problem,
    known_package,
    namespace_of,
    namespace_problem,
    package_named,
    package_problem,
)
from overlay.planning.scopes import Syntax
from overlay.planning.text import SourceText
from overlay.report import by_fields
from overlay.results import Fate

#: Folders and endings of files that a patch of an installation has no use for.
_TESTS = (
    "tests/",
    "test/",
    ".buildkite/",
    ".github/",
    "docker/",
    "benchmarks/",
    "examples/",
    "tools/",
)
_DOCS = ("docs/",)
_DOC_ENDINGS = (".md", ".rst", ".txt")
#: Files that say how a project's Python is packed, and what is installed beside it; what says how
#: its kernels are built (`CMakeLists.txt`) is no such file, since Python calls those.
_PACKAGING = re.compile(
    r"(setup\.(py|cfg)|pyproject\.toml|MANIFEST\.in|requirements[^/]*\.txt|requirements/.+"
    r"|\.[^/]+|mkdocs\.ya?ml|(.*/)?[^/]+\.(dist|egg)-info/.*)"
)


#: Folders in which projects keep their packages.
_SOURCES = re.compile(r"^(\./|src/|python/|lib/)+")

#: What a project keeps beside its package, and no feature carries.
_BESIDE = (Fate.TESTS, Fate.DOCS, Fate.PACKAGING)

#: What has no text that a feature could carry, and what becomes of it where a part is enough.
_NO_TEXT = {
    ChangeKind.MODE: Fate.MODE,
    ChangeKind.LINK: Fate.TEXTLESS,
    ChangeKind.SUBMODULE: Fate.TEXTLESS,
    ChangeKind.EMPTY: Fate.TEXTLESS,
    ChangeKind.ALONE: Fate.TEXTLESS,
}
#: What a feature does in the place of it.
_DOES = dict.fromkeys(_NO_TEXT, "edits files in place, adds new ones and removes them") | {
    ChangeKind.MODE: "carries texts, no modes: `chmod` where it is installed",
    ChangeKind.ALONE: "needs its lines: make the diff with -N (diff -urN)",
}


@dataclass(frozen=True)
class FileFate:
    """What became of one file.

    :ivar base: the release whose text it was made on; ``None`` for an added module, and where no
        release has the text.
    :ivar problem: why it could not be carried, with its line in the source; ``None`` if it was.
    :ivar removes: whether the feature removes it.
    :ivar made_on: in words, the text that it was made on.
    """

    path: str
    fate: Fate
    base: str | None = None
    by_id: bool = False
    hunks: int = 0
    problem: str | None = None
    removes: bool = False
    made_on: str = ""

    def plain(self) -> dict[str, object]:
        """The fields of the JSON."""
        return by_fields(self, "by_id", "removes", "made_on")


def sort_files(
    commits: Sequence[Commit], partial: bool, package: Package = VLLM
) -> tuple[dict[str, list[IncomingFile]], dict[str, IncomingFile], list[FileFate]]:
    """Sort the files into those to edit and to add, by path, and the fate of those left out."""
    _require_package(commits, package)
    sorted_ = _Sorted()
    for commit in commits:
        for file in commit.files:
            if _is_no_part(file, package):
                sorted_.fates.append(FileFate(file.path, Fate.OUTSIDE))
            else:
                sorted_.take(_to_package(file, package), package, partial=partial)
    sorted_.expect_apart()
    if problems := sorted_.problems():
        raise UsageError("\n".join(problems))
    return sorted_.edits, sorted_.added, sorted_.fates


def _is_no_part(file: IncomingFile, package: Package) -> bool:
    """Whether `Only in` of a folder diff names something that no feature could carry anyway."""
    path = file.path
    return file.kind is ChangeKind.ALONE and (
        not path.startswith(f"{package.name}/")
        or ("." in path.rpartition("/")[2] and file_problem(path, package) is not None)
    )


def _to_package(file: IncomingFile, package: Package) -> IncomingFile:
    """What becomes of a file in the package: one that is renamed into a test is removed there."""
    if file.kind is ChangeKind.RENAMED and file.old_path and _fate(file, package) in _BESIDE:
        removal = replace(file, path=file.old_path, old_path=None)
        return removal if _fate(removal, package) is Fate.EDITED else file
    return file


@dataclass
class _Sorted:
    edits: dict[str, list[IncomingFile]] = field(default_factory=dict)
    added: dict[str, IncomingFile] = field(default_factory=dict)
    fates: list[FileFate] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)

    def take(self, file: IncomingFile, package: Package, *, partial: bool) -> None:
        """Sort one file."""
        fate, path = _fate(file, package), file.path
        if fate in (*_BESIDE, Fate.OUTSIDE):
            self.fates.append(FileFate(path, fate))
            if fate is not Fate.OUTSIDE:
                return
            if _leaves(path):
                self._refuse(
                    file,
                    f"expected paths inside {package.name}/, found {path!r}, which "
                    "leaves the folder of the change",
                )
            elif not partial:
                other = known_package([path])
                if other is not None and other != package:
                    self._refuse(file, _two_packages(file, package, other))
                    return
                self._refuse(
                    file, _outside(file, package), "the rest is half a change; --partial takes it"
                )
        elif file.kind in _NO_TEXT:
            self.fates.append(FileFate(path, _NO_TEXT[file.kind]))
            if not partial:
                what = f"it {file.kind.value} {path}; a feature {_DOES[file.kind]}"
                self._refuse(file, what, "--partial leaves that out")
        elif (problem := _unsaid(file, package)) is not None:
            self._refuse(file, problem)
        else:
            if file.mode is not None:
                self.fates.append(FileFate(path, Fate.MODE))
                if not partial:
                    self._refuse(
                        file,
                        f"it gives {path} the mode {file.mode}, and a feature "
                        "carries texts, no modes",
                        "--partial leaves the mode out",
                    )
            self._keep(file)

    def _keep(self, file: IncomingFile) -> None:
        """Note a module that is edited or added, on top of the commits before."""
        path = file.path
        if file.kind is ChangeKind.RENAMED and file.old_path is not None:
            file = replace(file, path=file.old_path, new_path=path)
            path = file.path
        if file.is_new:
            if path in self.added or path in self.edits:
                first = self.added.get(path) or self.edits[path][0]
                self._refuse(
                    file,
                    f"it adds {path}, which {first.place} {first.kind.value} too: "
                    "give one of the two",
                )
            else:
                self.added[path] = file
        elif path in self.added and file.kind is ChangeKind.REMOVED:
            del self.added[path]
        elif path in self.added and file.kind is ChangeKind.MODIFIED:
            self.added[path] = _laid_on(self.added[path], file)
        elif path in self.added:
            self._refuse(
                file, f"it {file.kind.value} {path}, which the change itself adds: make one of both"
            )
        else:
            self.edits.setdefault(path, []).append(file)

    def _refuse(self, file: IncomingFile, problem: str, rest: str = "") -> None:
        """Note why a file is refused, and how to get the rest of the change, where there is one."""
        self.refused.append((file.path, f"{file.place}: {problem}", rest))

    def problems(self) -> list[str]:
        """Why files are refused, one sentence a cause."""
        carried = self.edits or self.added
        return told_once(
            (path, f"{problem} ({rest})" if rest and carried else problem)
            for path, problem, rest in self.refused
        )

    def expect_apart(self) -> None:
        """Refuse added modules that cannot lie beside each other in a folder."""
        spellings: dict[str, str] = {}
        for path, file in self.added.items():
            above = set(map(str, PurePosixPath(path).parents))
            if modules := sorted(above & {*self.added, *self.edits}):
                self._refuse(file, f"it adds {path}, and {modules[0]} is a module")
            # Some systems tell neither case nor how an accent is written.
            spelling = spellings.setdefault(normalize("NFC", path.casefold()), path)
            if spelling != path:
                self._refuse(
                    file,
                    f"it adds {path} beside {spelling}: where file names have no case, or one "
                    "form of each letter, both are one file; give one of them another name",
                )


def _require_package(commits: Sequence[Commit], package: Package) -> None:
    """Refuse a change of another project, none of whose files the package could have."""
    files = [file for commit in commits for file in commit.files]
    folder = f"{package.name}/"
    outside = [file for file in files if _fate(file, package) is Fate.OUTSIDE]
    if outside and not any(folder in file.path for file in files):
        file = next((file for file in outside if _whose(file.path)), outside[0])
        raise UsageError(
            f"{file.place}: expected a change of {package.title}, whose Python lies in {folder}, "
            f"found one of {file.path}{_whose(file.path)}"
        )


def _two_packages(file: IncomingFile, package: Package, other: Package) -> str:
    """Why a file of another package is refused, with the command for each of the two."""
    halves = [
        str(command("import", file.source, "--id", id_, "--partial", *_releases(each)))
        for id_, each in (("ID", package), ("OTHER", other))
    ]
    return (
        f"it {file.kind.value} {file.path}, a file of {other.title} beside those of "
        f"{package.title}, and a feature is for one package: import each by itself, "
        f"{' and '.join(halves)}"
    )


def _outside(file: IncomingFile, package: Package) -> str:
    why = f"which is no module or data file of {package.name}/"
    if file.path.startswith(f"{package.name}/") and not file.path.isprintable():
        why = f"and {file_problem(file.path, package)}"
    return f"it {file.kind.value} {file.path}, {why}"


def _releases(package: Package) -> tuple[str, ...]:
    span = "all" if package.releases else "VERSION"
    return () if package == VLLM else ("--releases", f"{package.distribution}=={span}")


def _whose(path: str) -> str:
    """How to import a change of what may be another package; empty where it cannot be one."""
    name, _, below = _SOURCES.sub("", path).partition("/")
    if not below.endswith(".py") or package_problem(name) is not None:
        return ""
    if (distribution := namespace_of(name)) is not None:
        return f"; {namespace_problem(distribution)}"
    package = package_named(name)
    if package == VLLM:
        return ""
    return f"; where {name} is a package, name its releases: {' '.join(_releases(package))}"


def _leaves(path: str) -> bool:
    """Whether a path leads out of the folder that it is relative to."""
    return path.startswith(("/", "\\")) or ".." in path.replace("\\", "/").split("/")


def _unsaid(file: IncomingFile, package: Package) -> str | None:
    """Why a change of a file cannot be carried, and what helps; ``None`` where it can."""
    if file.kind is ChangeKind.COPIED:
        return (
            f"it {file.kind.value} {file.path} (from {file.old_path}); a feature edits files in "
            "place, adds new ones and removes them: `git diff --no-renames` has the new file whole"
        )
    if file.kind is ChangeKind.BINARY and file.binary is None:
        return (
            f"it replaces the bytes of {file.path} and does not hold them: make the diff with git "
            "diff --binary"
        )
    if file.is_new and file.binary is not None and file.binary.is_delta:
        return f"it adds {file.path} as a delta of other bytes: make it with git diff --binary"
    if file.kind is not ChangeKind.RENAMED or file.old_path is None:
        return None
    if (problem := file_problem(file.old_path, package)) is not None:
        return f"it {file.kind.value} {file.path} (it was {file.old_path}): {problem}"
    return None


def is_beside(path: str) -> bool:
    """Whether a project keeps a file beside its package: tests, tools, documentation."""
    return path.startswith((*_TESTS, *_DOCS)) or _PACKAGING.fullmatch(path) is not None


def _fate(file: IncomingFile, package: Package) -> Fate:
    """Why a file is left out; of one that a feature may have, added or not, that it is edited."""
    path = file.path
    if _leaves(path) or path == "CMakeLists.txt":
        return Fate.OUTSIDE
    if path.startswith(_TESTS):
        return Fate.TESTS
    # A build writes the version, and a diff of two installations has it.
    if _PACKAGING.fullmatch(path) or path == f"{package.name}/_version.py":
        return Fate.PACKAGING
    if path.startswith(_DOCS) or ("/" not in path and path.endswith(_DOC_ENDINGS)):
        return Fate.DOCS
    if file.kind is not ChangeKind.ALONE and file_problem(path, package) is not None:
        return Fate.OUTSIDE
    return Fate.EDITED


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
    return replace(first, hunks=(hunk,))


def added_content(file: IncomingFile) -> bytes:
    """The bytes of an added file."""
    if file.binary is not None:
        return file.binary.data
    lines = [text for hunk in file.hunks for op, text in hunk.lines if op == "+"]
    unfinished = bool(file.hunks) and file.hunks[-1].post_unfinished
    end = "\r\n" if file.crlf else "\n"
    text = end.join(lines) + ("" if unfinished or not lines else end)
    return text.encode("utf-8", "surrogateescape")


def uncompilable(path: str, data: bytes, syntax: Syntax) -> str | None:
    """Why a module that a change leaves cannot be Python, in words; ``None`` where it compiles."""
    problem = syntax.module_error(data, path)
    return None if problem is None else f"{path} does not compile: {problem}"


def added_problem(path: str, data: bytes, syntax: Syntax) -> str | None:
    """Why a feature cannot add a file, in words; ``None`` where it can."""
    return unread(path) or uncompilable(path, data, syntax)
