"""What is patched: packages, their releases and ranges, and the paths that a patch may reach."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from packaging.version import InvalidVersion, Version

from overlay.errors import TargetError, bounded


class Tree(Protocol):
    """The files of a target, as far as planning needs them."""

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, or ``None`` if the file does not exist."""


def paths_in(tree: Tree) -> Sequence[str]:
    """The files of a tree, where it can tell them; empty where it cannot."""
    tell = getattr(tree, "paths", None)
    return tell() if callable(tell) else ()


class ReadOnce:
    """A tree of which each file is read once, so that all of a plan rests on the same bytes."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._files: dict[str, bytes | None] = {}
        self._paths: Sequence[str] | None = None

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, ``None`` where there is none."""
        if path not in self._files:
            self._files[path] = self._tree.read(path)
        return self._files[path]

    def paths(self) -> Sequence[str]:
        """The files of the tree, where it can tell them."""
        if self._paths is None:
            self._paths = paths_in(self._tree)
        return self._paths


#: The releases of vLLM that the shipped features are made and tested for, oldest first
#: (all of 0.20 to 0.33 on the package index on 2026-11-20).
KNOWN_RELEASES = tuple(
    "0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 "
    "0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0".split()
)

#: The same of vllm-ascend; most of its releases are release candidates and nothing else.
_ASCEND_RELEASES = tuple(
    "0.20.2rc1 0.21.0rc1 0.22.1rc1 0.23.0rc1 0.23.0 0.23.0.post1 0.24.0rc1 0.25.1rc1 0.26.0rc1 "
    "0.27.1rc1 0.28.0rc1 0.29.0rc1 0.30.0rc1 0.30.0rc2".split()
)


#: Characters of a version; those of nightly builds have some fifty.
_MAX_VERSION = 200


class Package(NamedTuple):
    """A Python package that features patch.

    Everything that differs between packages is in here; nothing else asks for a package by name.

    :ivar name: what Python imports (``vllm_ascend``), which is the name of its folder too.
    :ivar distribution: what pip installs and the package index has (``vllm-ascend``).
    :ivar title: what messages call it.
    :ivar releases: those that the shipped features are made and tested for, oldest first.
    :ivar has_candidates: whether release candidates count as releases, so that a range may end at
        one and holds those in ``releases``.
    """

    name: str
    distribution: str
    title: str
    releases: tuple[str, ...] = ()
    has_candidates: bool = True

    @property
    def key(self) -> str:
        """The name of its distribution as installers compare names."""
        return distribution_name(self.distribution)

    @property
    def state_folder(self) -> str:
        """The folder beside the package in which the overlay keeps its own files."""
        return f".{self.name}-overlay"

    @property
    def ledger_path(self) -> str:
        """The path of the ledger."""
        return f"{self.state_folder}/ledger.json"

    @property
    def journal_path(self) -> str:
        """The path of the journal, which is there while a transaction runs."""
        return f"{self.state_folder}/journal.json"

    @property
    def pristine_folder(self) -> str:
        """The folder of the bytes that ``revert`` restores."""
        return f"{self.state_folder}/pristine"

    @property
    def ignore_path(self) -> str:
        """The path of the file that tells git to leave the overlay's own files alone."""
        return f"{self.state_folder}/.gitignore"

    @property
    def initial(self) -> str:
        """The path of the module that makes a folder the package."""
        return f"{self.name}/__init__.py"

    def candidates(self) -> tuple[Version, ...]:
        """The release candidates among its releases."""
        return _candidates(self.releases) if self.has_candidates else ()


@cache
def _candidates(releases: tuple[str, ...]) -> tuple[Version, ...]:
    return tuple(each for text in releases if (each := Version(text)).is_prerelease)


VLLM = Package("vllm", "vllm", "vLLM", KNOWN_RELEASES, has_candidates=False)

#: The packages of which the overlay knows more than their name.
KNOWN_PACKAGES = (
    VLLM,
    Package("vllm_ascend", "vllm-ascend", "vllm-ascend", _ASCEND_RELEASES),
)


#: Distributions whose packages have another name, by the name of the package.
_DISTRIBUTIONS = {"flashinfer": "flashinfer-python", "aiter": "amd-aiter"}

#: Distributions whose package is a namespace, which has no ``__init__.py`` that tells its version.
_NAMESPACES = {"megatron-core": "megatron", "nvidia-cutlass-dsl": "cutlass"}


def namespace_problem(distribution: str) -> str | None:
    """Why no feature patches what a distribution installs; ``None`` where one may.

    >>> namespace_problem("megatron-core")
    'megatron-core installs megatron/ as a namespace, and a feature patches a package of its own'
    """
    name = _NAMESPACES.get(distribution_name(distribution))
    if name is None:
        return None
    why = "and a feature patches a package of its own"
    return f"{distribution} installs {name}/ as a namespace, {why}"


def namespace_of(name: str) -> str | None:
    """The distribution that installs a folder as a namespace; ``None`` where none is known to.

    >>> namespace_of("cutlass")
    'nvidia-cutlass-dsl'
    """
    return next((each for each, folder in _NAMESPACES.items() if folder == name), None)


def known_package(paths: Iterable[str]) -> Package | None:
    """The package that the overlay knows in whose folder one of some paths lies, vLLM first.

    >>> known_package(["docs/a.md", "vllm_ascend/utils.py"]).title
    'vllm-ascend'
    """
    folders = {path.partition("/")[0] for path in paths}
    return next((package for package in KNOWN_PACKAGES if package.name in folders), None)


def package_problem(name: str) -> str | None:
    """Why a text cannot name a package that features patch, or ``None`` if it can.

    >>> package_problem("vllm_ascend"), package_problem("vllm-ascend")
    (None, "'vllm-ascend' is not the name of a package as Python imports it, such as vllm_ascend")
    """
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        return (
            f"{name!r} is not the name of a package as Python imports it, such as "
            f"{_import_name(name) or 'vllm'}"
        )
    if name in sys.stdlib_module_names or name == "overlay":
        return f"{name!r} is a part of {'the overlay' if name == 'overlay' else 'Python'} itself"
    return None


def _import_name(name: str) -> str | None:
    """The import name that a distribution probably has; ``None`` where no such name can be."""
    guess = re.sub(r"[-_.]+", "_", name).lower()
    return guess if guess.isascii() and guess.isidentifier() else None


def package_named(name: str) -> Package:
    """The package with an import name; one that the overlay does not know is called as it is.

    :raises ValueError: if it cannot be one.
    """
    package = next((package for package in KNOWN_PACKAGES if package.name == name), None)
    if package is not None:
        return package
    if (problem := package_problem(name)) is not None:
        raise ValueError(problem)
    return Package(name, _DISTRIBUTIONS.get(name, name.replace("_", "-")), name)


def distribution_name(text: str) -> str:
    """The normalized name of a distribution.

    >>> distribution_name("vLLM_Ascend")
    'vllm-ascend'
    """
    return re.sub(r"[-_.]+", "-", text).lower()


def package_of_distribution(text: str) -> Package | None:
    """The package that a distribution installs, by its name; ``None`` where it cannot be told.

    >>> package_of_distribution("vllm-ascend").name
    'vllm_ascend'
    """
    distribution = distribution_name(text)
    for package in KNOWN_PACKAGES:
        if package.key == distribution:
            return package
    names = (name for name, other in _DISTRIBUTIONS.items() if other == distribution)
    name = next(names, _import_name(text))
    return None if name is None or package_problem(name) else package_named(name)


def parse_release(text: str) -> Version:
    """The release that a version string names, without its local label (``0.26.0+cpu``).

    :raises ValueError: if it is not a version.
    """
    version = parse_version(text)
    if version is None:
        raise ValueError(f"{bounded(text, 80)!r} is not a release number, such as 0.26.0")
    return Version(version.public)


def parse_version(text: str) -> Version | None:
    """The version that a text is; ``None`` if it is none.

    >>> parse_version("0.26.0+cpu"), parse_version("9" * 5000), parse_version("vllm")
    (<Version('0.26.0+cpu')>, None, None)
    """
    if len(text) > _MAX_VERSION:  # Python refuses numbers of thousands of digits
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def same_release(version: Version) -> Version:
    """The one spelling of a version: at least three numbers, no needless zero behind them.

    >>> str(same_release(Version("0.26"))), str(same_release(Version("v0.26.0.0+cpu")))
    ('0.26.0', '0.26.0+cpu')
    """
    numbers = list(version.release) + [0] * (3 - len(version.release))
    while len(numbers) > 3 and numbers[-1] == 0:
        numbers.pop()
    epoch = f"{version.epoch}!" if version.epoch else ""
    behind = str(version).removeprefix(version.base_version)
    return Version(f"{epoch}{'.'.join(map(str, numbers))}{behind}")


class PackageRelease(NamedTuple):
    """A release of a package.

    >>> release = PackageRelease(Version("0.26.0"), VLLM)
    >>> str(release), release.requirement
    ('vLLM 0.26.0', 'vllm==0.26.0')
    """

    version: Version
    package: Package

    def __str__(self) -> str:
        return f"{self.package.title} {self.version}"

    @property
    def requirement(self) -> str:
        """The release as pip takes it."""
        return f"{self.package.distribution}=={self.version}"


_RANGE = re.compile(r"^(?P<first>[^.\s][^\s]*?)\.\.(?P<last>[^.\s][^\s]*)$")


class ReleaseRange(NamedTuple):
    """A range of releases, closed at both ends, written ``first..last``.

    :ivar candidates: the release candidates that count as releases.
    """

    first: Version
    last: Version
    candidates: tuple[Version, ...] = ()

    @classmethod
    def parse(cls, text: str, package: Package) -> ReleaseRange:
        """Read ``0.20.0..0.23.0``.

        :param package: whose releases they are; says whether an end may be a release candidate.
        :raises ValueError: if an end is open or missing, is not a release, or the ends are swapped.
        """
        match = _RANGE.match(text) if len(text) < 3 * _MAX_VERSION else None
        text = bounded(text, 80)
        if match is None:
            raise ValueError(f"{text!r} is not a closed range of releases, such as 0.20.0..0.23.0")
        first, last = parse_release(match["first"]), parse_release(match["last"])
        pre_releases = {end for end in (first, last) if end.is_prerelease}
        if pre_releases and not package.has_candidates:
            raise ValueError(
                f"{text!r} ends at a pre-release; a range of {package.title} holds releases only"
            )
        if any(end.is_devrelease for end in pre_releases):
            raise ValueError(f"{text!r} ends at a development release; no index has it to keep")
        if last < first:
            raise ValueError(f"{text!r} ends before it begins")
        return cls(first, last, tuple(sorted({*pre_releases, *package.candidates()})))

    def __contains__(self, release: object) -> bool:
        """Whether it is a release of the range; a pre-release is one only if it is named."""
        return (
            isinstance(release, Version)
            and (not release.is_prerelease or release in self.candidates)
            and self.first <= release <= self.last
        )

    def overlaps(self, other: ReleaseRange) -> bool:
        """Whether some release could lie in both."""
        return self.first <= other.last and other.first <= self.last

    def within(self, other: ReleaseRange) -> ReleaseRange:
        """The part of it that lies in another range; only of ranges that overlap."""
        return self._replace(first=max(self.first, other.first), last=min(self.last, other.last))

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


#: The longest id of a feature: it is the name of a folder, with more behind it while it is laid.
_MAX_ID = 200

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def id_problem(text: str) -> str | None:
    """Why a text cannot be the id of a feature, or ``None`` if it can.

    An id is the name of a folder, so this is asked wherever one is read.

    >>> id_problem("stop-strings"), id_problem("../stop")
    (None, "'../stop' is not lower-case-with-hyphens")
    """
    if len(text) > _MAX_ID:
        return f"'{text[:20]}...' has {len(text)} characters: expected at most {_MAX_ID}"
    return None if _ID.fullmatch(text) else f"{text!r} is not lower-case-with-hyphens"


def require_id(value: object) -> str:
    """``value`` itself, if it is the id of a feature.

    :raises TypeError: if it is not a text; :raises ValueError: if it cannot be an id.
    """
    text = require_text(value)
    if (problem := id_problem(text)) is not None:
        raise ValueError(f"id: {problem}")
    return text


#: The longest path of a module, and of a part of it; the longest of vLLM's has a fifth of that, and
#: systems end at 4096 and 255.
_MAX_PATH, _MAX_NAME = 512, 200


def length_problem(path: str) -> str | None:
    """Why a path is too long for a module, or ``None`` if it is not; it is quoted in part."""
    if len(path) <= _MAX_PATH and max(map(len, path.split("/"))) <= _MAX_NAME:
        return None
    return f"'{path[:40]}...' is longer than any path of a module ({len(path)} characters)"


#: Files of a package that no patch may reach: code that is loaded without a line that anybody could
#: read, what Python and installers write themselves, and the names of the overlay's own staging.
_NO_DATA = re.compile(
    r"\.(?:so(?:\.[0-9.]+)?|pyd|dll|dylib|pyc|pyo|pth)$|\.overlay-(?:old|new)$", re.IGNORECASE
)
_NO_FOLDER = re.compile(r"(?:^|/)(?:__pycache__|[^/]+\.(?:dist|egg)-info)/", re.IGNORECASE)


def path_problem(path: str, package: Package) -> str | None:
    """Why a path is not that of a module that may be patched or added, or ``None`` if it is."""
    if (problem := _place_problem(path, package)) is not None:
        return problem
    return None if is_module(path) else f"{path!r} is not a Python module (.py)"


def file_problem(path: str, package: Package) -> str | None:
    """Why a path may not be changed by a patch, or ``None`` if it may.

    A patch reaches the modules and the data files of its package, and nothing else.
    """
    if (problem := _place_problem(path, package)) is not None:
        return problem
    if _NO_DATA.search(path) or _NO_FOLDER.search(path):
        return (
            f"{path!r} is neither a module nor a data file: compiled code, bytecode and what an "
            "installer writes are not patched"
        )
    return None


def is_module(path: str) -> bool:
    """Whether a file is a Python module by its name; any other file of a package is data."""
    return path.endswith(".py")


def module_name(path: str) -> str:
    """The name of the module in a file of a package; a folder is named by its ``__init__.py``.

    >>> module_name("vllm/v1/a.py"), module_name("vllm/v1/b/__init__.py")
    ('vllm.v1.a', 'vllm.v1.b')
    """
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _place_problem(path: str, package: Package) -> str | None:
    """Why a path is not plainly inside the folder of a package, or ``None`` if it is."""
    if (problem := length_problem(path)) is not None:
        return problem
    parts, name = path.split("/"), package.name
    if not path or path.startswith("/") or re.match(r"^[A-Za-z]:", path):
        return f"{path!r} is not relative to the folder that holds {name}/"
    if ".." in parts or "." in parts or "" in parts:
        return f"{path!r} has an empty part, '.' or '..' in it"
    if "\\" in path or not path.isprintable():
        return f"{path!r} has a backslash or a control character in it"
    if parts[0] != name or len(parts) < 2:
        return f"{path!r} lies outside {name}/"
    return None


def hiding(path: str) -> str:
    """The package that Python imports in the place of a module, where both are there."""
    return f"{path.removesuffix('.py')}/__init__.py"


def folder_problem(path: str, package: Package) -> str | None:
    """Why a feature could not have added the folder ``path``, or ``None`` if it could."""
    return path_problem(f"{path}/__init__.py", package) or (
        f"{path!r} is not a folder inside {package.name}/" if path == package.name else None
    )


def check_path(path: str, package: Package) -> None:
    """Refuse a path that is not plainly inside the folder of a package.

    :raises TargetError: if it is absolute, has ``..`` or lies elsewhere.
    """
    parts, name = path.split("/"), package.name
    if parts[0] != name or len(parts) < 2 or "\\" in path or "\0" in path:
        raise TargetError(f"{path!r}: expected a path inside {name}/, such as {name}/v1/utils.py")
    if any(part in ("", ".", "..") for part in parts):
        raise TargetError(f"{path!r}: expected a plain path inside {name}/, without '.' and '..'")


def inside(path: object) -> str:
    """``path`` itself, if it is plainly inside the target.

    :raises ValueError: if it is absolute, has ``..`` or ``.`` parts, or is not text.
    """
    text = require_text(path)
    if "\\" in text or "\0" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(f"path {text!r} leaves the target")
    return text


def require_text(value: object) -> str:
    """``value`` itself, if it is a text.

    :raises TypeError: if it is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def require_list(value: object) -> list[Any]:
    """``value`` itself, if it is a list; a text or an object would count as one without rows.

    :raises TypeError: if it is something else.
    """
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r}")
    return value
