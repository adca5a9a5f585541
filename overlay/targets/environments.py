"""Find the package that a Python would import: this one, or that of another environment.

Nothing of what is found is imported or run.  This Python's own path finder is asked, and the static
finder that setuptools installs for editable distributions.

Another environment is a virtual environment (a folder with ``pyvenv.cfg``) or an interpreter, which
is not run either.  Its ``site-packages`` are worked out as CPython does it, path lines of ``.pth``
files are followed, and of editable installations the mapping that setuptools wrote is read.  Lines
of ``.pth`` files that hold code, ``sitecustomize``, ``PYTHONPATH`` and an interpreter's own answers
are left out: all of them would mean running what a stranger may have left there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import Absent, TargetError, command
from overlay.package import VLLM, Package
from overlay.targets import Target, targets_of
from overlay.targets.installations import read_bytes, target_at, unreadable
from overlay.untrusted import open_regular

#: A script names its interpreter in its first bytes; a program does not begin so.
_SCRIPT = b"#!"


class Environment(NamedTuple):
    """A Python environment on disk.

    :ivar name: what the user named.
    :ivar prefix: the folder that it is installed in.
    :ivar path: where it imports packages from, in order; a part of its ``sys.path``.
    """

    name: str
    prefix: Path
    path: tuple[str, ...]


def resolve_installed(package: Package) -> Target:
    """The target that this Python would import as a package.

    :raises Absent: if there is none.
    :raises TargetError: if it lies in an archive, or two distributions own it.
    """
    folder, shadowed = find(sys.path, sys.meta_path, package)
    here = os.path.realpath(folder)
    warnings = tuple(
        f"this Python imports {package.title} from {folder}; another one at {other} is "
        "hidden by it and is left as it is (name its folder to work on it)"
        for other in dict.fromkeys(shadowed)
        if os.path.realpath(other) != here
    )
    return target_at(folder, os.path.dirname(here), package, path=sys.path, warnings=warnings)


def resolve_environment(place: Path, name: str, package: Package) -> Target:
    """The package that another Python environment would import.

    :param place: a virtual environment, or an interpreter, such as ``.venv/bin/python``.
    :param name: what the user called it.
    :raises Absent: if it does not have the package.
    :raises TargetError: if it is not an environment, or the package cannot be patched there.
    """
    environment = environment_at(place, name)
    folder, _ = find(
        environment.path,
        (),
        package,
        also=_editable_packages(environment.path, package),
        python=f"the Python environment {environment.prefix}",
    )
    return target_at(folder, name, package, path=environment.path)


def find(
    path: Sequence[str],
    meta_path: Sequence[Any],
    package: Package,
    *,
    also: Sequence[Path] = (),
    python: str | None = None,
) -> tuple[Path, Sequence[Path]]:
    """The folder to which the import of a package would lead, links and all, and those it hides.

    They are looked for along ``path``, then in the editable finders of ``meta_path``.

    :param also: folders of packages of that name that editable installations lead to, asked last.
    :param python: what to call the Python that would import it; default: this one.
    :raises Absent: if no such package is there.
    :raises TargetError: if the first one is not a plain folder.
    """
    specs = [spec for entry in path if (spec := PathFinder.find_spec(package.name, [entry]))]
    for finder in meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            spec = finder.find_spec(package.name)
            specs += [spec] if spec is not None else []
    real = [spec for spec in specs if spec.origin is not None]
    packages = [Path(spec.origin).parent for spec in real[1:] if _is_package(spec) and spec.origin]
    packages += also
    if real:
        return _folder(real[0], package), packages
    if packages:
        return packages[0], packages[1:]
    leftovers = [str(place) for spec in specs for place in spec.submodule_search_locations or ()]
    raise Absent(_nothing(path, leftovers, python or sys.executable, package))


def _is_package(spec: ModuleSpec) -> bool:
    return os.path.basename(spec.origin or "") == "__init__.py" and os.path.isfile(
        spec.origin or ""
    )


def _folder(spec: ModuleSpec, package: Package) -> Path:
    origin = str(spec.origin)
    archive = getattr(spec.loader, "archive", None)
    if archive is not None:
        raise TargetError(
            f"this Python imports {package.title} from inside the archive {archive}: expected a "
            "plain folder, because a file in an archive cannot be patched in place. Unpack it into "
            "a folder and put that on sys.path, or name the archive as TARGET where it is a wheel"
        )
    if not _is_package(spec):
        raise TargetError(
            f"this Python imports {package.name} from {origin}: expected the package "
            f"{package.initial}. Something else is called {package.name} here; remove or rename it"
        )
    return Path(os.path.abspath(origin)).parent


def _nothing(path: Sequence[str], leftovers: Sequence[str], python: str, package: Package) -> str:
    text = (
        f"no {package.title}: expected a package {package.name} that {python} could import, found "
        "none on its path."
    )
    for place in dict.fromkeys(leftovers):
        text += f" The folder {place} has no __init__.py: it is left over, or something else."
        if os.path.isfile(os.path.join(os.path.dirname(place), package.ledger_path)):
            text += (
                f" The overlay had patched it: with {package.title} installed again, "
                f"{command('revert')} removes what it added."
            )
    closed = [entry for entry in path if os.path.isdir(entry) and not os.access(entry, os.R_OK)]
    for entry in closed:
        text += f" The folder {entry} on the path may not be read by this user."
    return text + (
        f" Install {package.title} into this environment, run overlay with the Python that has it, "
        f"or name a TARGET: {targets_of(package)}"
    )


def is_environment(place: Path, packages: Iterable[Package] = (VLLM,)) -> bool:
    """Whether a path names a virtual environment or an interpreter, judged by its name and files.

    A folder that holds a package itself is a target of its own, whatever else lies there.

    :param packages: those that are looked for.
    """
    if place.is_dir():
        has_package = any((place / package.initial).exists() for package in packages)
        return (place / "pyvenv.cfg").is_file() and not has_package
    is_named_so = re.match(r"^(python|pypy)\d*(\.\d+)?t?(\.exe)?$", place.name) is not None
    return is_named_so and os.access(place, os.X_OK)


def named_interpreter(text: str) -> Path:
    """The place of the interpreter or virtual environment that ``--python`` names.

    A bare name such as ``python3.12`` is looked up on ``PATH``.

    :raises TargetError: if it is a program that is not on ``PATH``, or empty.
    """
    if not text:
        raise TargetError("--python is empty: name an interpreter or a virtual environment")
    place = Path(os.path.expanduser(text))
    if os.sep not in text and not place.exists():
        import shutil

        program = shutil.which(text)
        if program is None:
            raise TargetError(
                f"--python {text}: expected an interpreter or a virtual environment, found neither "
                "a path nor a program of that name on PATH"
            )
        place = Path(program)
    return place


class _NoEnvironment(TargetError):
    """What was named is no environment; the message does not say yet what was named."""


def environment_at(place: Path, name: str) -> Environment:
    """The environment that a folder or an interpreter belongs to.

    :raises TargetError: if there is none there.
    """
    try:
        prefix = place if place.is_dir() else _prefix(place)
        if (prefix / "pyvenv.cfg").is_file():
            folders = _folders_of(prefix)
        elif place.is_dir():
            raise _NoEnvironment(
                "expected a virtual environment (a folder with pyvenv.cfg) or an interpreter such "
                "as .venv/bin/python, found another folder; name the interpreter itself"
            )
        else:
            folders = [*_base_folders(prefix, _version_of(place))]
        return Environment(name, prefix, _with_path_files(folders))
    except _NoEnvironment as error:
        raise TargetError(f"{name}: {error}") from error


def _folders_of(prefix: Path) -> list[str]:
    """The folders from which a virtual environment imports packages."""
    settings = _settings(prefix / "pyvenv.cfg")
    version = _major_minor(settings.get("version") or settings.get("version_info") or "")
    folders = [*_site_packages(prefix, version)]
    if not folders:
        raise _NoEnvironment(
            f"expected site-packages in the virtual environment {prefix}, found none; create it "
            "again (python -m venv), or name another"
        )
    home = settings.get("home")
    if home and settings.get("include-system-site-packages", "").lower() == "true":
        folders += _base_folders(Path(home).parent, version)
    return folders


def _prefix(place: Path) -> Path:
    """The folder that an interpreter is installed in, by CPython's rules.

    A link is followed one step at a time: a virtual environment's interpreter is a link to its
    base's, and ``pyvenv.cfg`` lies beside the link.
    """
    visited = set()
    here = Path(os.path.abspath(place))
    while str(here) not in visited:
        visited.add(str(here))
        for folder in (here.parent, here.parent.parent):
            if (folder / "pyvenv.cfg").is_file():
                return folder
        if not here.is_symlink():
            break
        here = Path(os.path.abspath(here.parent / os.readlink(here)))
    _require_program(here)
    return Path(os.path.realpath(here)).parent.parent


def _require_program(place: Path) -> None:
    """Refuse what is not a program: where nothing, a folder or a script is found in its place."""
    try:
        if not place.is_file():
            raise _NoEnvironment(
                "expected an interpreter or a virtual environment, found "
                f"{'something else' if os.path.lexists(place) else 'nothing'} at {place}"
            )
        with open_regular(place) as file:
            magic = file.read(2)
    except OSError as error:
        raise TargetError(unreadable(place, error)) from error
    if magic == _SCRIPT:
        raise _NoEnvironment(
            "expected an interpreter, found a script (a shim of pyenv or asdf, perhaps), which is "
            "not run to find out what it starts; name the interpreter itself, which "
            "`python -c 'import sys; print(sys.executable)'` prints"
        )


def _settings(file: Path) -> dict[str, str]:
    """The ``name = value`` lines of ``pyvenv.cfg``, names in lower case."""
    text = (read_bytes(file) or b"").decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _major_minor(text: str) -> str | None:
    match = re.match(r"(\d+)\.(\d+)", text.strip())
    return f"{match[1]}.{match[2]}" if match else None


def _version_of(interpreter: Path) -> str | None:
    """The version in an interpreter's name, or in the name that its link leads to."""
    for place in (interpreter, Path(os.path.realpath(interpreter))):
        match = re.search(r"(\d+\.\d+)t?(\.exe)?$", place.name)
        if match:
            return match[1]
    return None


def _site_packages(prefix: Path, version: str | None) -> Iterator[str]:
    """The ``site-packages`` below a prefix; of one version where that is known."""
    pattern = f"python{version}*" if version else "python3*"
    places = [*prefix.glob(f"lib/{pattern}/site-packages")]
    places += prefix.glob(f"lib64/{pattern}/site-packages")
    visited = set()
    for folder in sorted(places):
        if (real := os.path.realpath(folder)) not in visited:  # lib64 may be a link to lib
            visited.add(real)
            yield str(folder)
    if (windows := prefix / "Lib" / "site-packages").is_dir() and os.name == "nt":
        yield str(windows)


def _base_folders(prefix: Path, version: str | None) -> Iterator[str]:
    """The folders from which an interpreter outside any virtual environment imports packages."""
    prefixes = [prefix / "local", prefix] if prefix == Path("/usr") else [prefix]
    for place in prefixes:
        yield from _site_packages(place, version)
        for debian in (f"python{version or '3'}", "python3"):
            folder = place / "lib" / debian / "dist-packages"
            if folder.is_dir():
                yield str(folder)


def _with_path_files(folders: Sequence[str]) -> tuple[str, ...]:
    """The folders, each followed by those that the ``.pth`` files in it name."""
    path: dict[str, None] = {}
    for folder in folders:
        path[folder] = None
        for file in _entries(folder, ".pth"):
            for line in _lines(Path(folder) / file):
                if line.startswith(("#", "import ", "import\t")) or not line.strip():
                    continue
                place = os.path.join(folder, line.strip())
                if os.path.isdir(place):
                    path[os.path.abspath(place)] = None
    return tuple(path)


def _editable_packages(path: tuple[str, ...], package: Package) -> list[Path]:
    """The folders of a package that setuptools' finders of editable installations lead to.

    Such a finder is a module beside the ``.pth`` file that imports it; its ``MAPPING`` is read as
    a literal.
    """
    packages = []
    for folder in path:
        for file in _entries(folder, "_finder.py"):
            if not file.startswith("__editable__"):
                continue
            place = _mapping("\n".join(_lines(Path(folder) / file))).get(package.name)
            if place is not None and os.path.isfile(os.path.join(place, "__init__.py")):
                packages.append(Path(place))
    return packages


def _mapping(text: str) -> dict[str, str]:
    """What ``MAPPING`` is set to at the top of a module; empty where it is not a literal."""
    import ast

    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    for node in body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "MAPPING" for target in targets):
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError):
                return {}
            if isinstance(value, dict):
                return {str(key): str(place) for key, place in value.items()}
    return {}


def _entries(folder: str, ending: str) -> list[str]:
    try:
        return sorted(entry for entry in os.listdir(folder) if entry.endswith(ending))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _NoEnvironment(unreadable(Path(folder), error)) from error


def _lines(file: Path) -> list[str]:
    return (read_bytes(file) or b"").decode("utf-8", "replace").splitlines()
