"""The package in a folder: its files, its version, and the distribution that installed it.

The folder may be site-packages, a checkout or an unpacked sdist; nothing in it is run.  Below are
the texts in which a distribution says of itself what it is and holds (METADATA, RECORD), and the
overlay's own rows in a RECORD.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from overlay.errors import Absent, TargetError
from overlay.package import Package, distribution_name, parse_release
from overlay.targets import MAX_FILE_BYTES, Target, targets_of
from overlay.untrusted import UnfitFile, parse_json, read_below, read_regular, sha256, way_out

#: The most files and folders of a package that are listed; vLLM 0.32.0 has 3,663 on a CPU.
MOST_ENTRIES = 50_000


class Distribution(NamedTuple):
    """An installed distribution that owns a package.

    :ivar info: its ``.dist-info`` folder; :ivar record: the bytes of its RECORD.
    """

    name: str
    version: str
    info: Path
    record: bytes

    @property
    def key(self) -> str:
        """Its name as installers compare names."""
        return distribution_name(self.name)


def resolve_folder(folder: Path, name: str, package: Package) -> Target:
    """The target in ``folder``, which the user called ``name``.

    :raises Absent: if it does not hold the package.
    :raises TargetError: if it cannot be looked into, or two distributions own the package.
    """
    _expect(folder, name, package)
    return target_at(folder / package.name, name, package)


def target_at(
    place: Path,
    name: str,
    package: Package,
    *,
    path: Sequence[str] = (),
    stated: str | None = None,
    warnings: tuple[str, ...] = (),
) -> Target:
    """The target whose package is the folder ``place``, known to be there.

    :param path: where the distribution of an editable installation may lie.
    :param stated: its version, where nothing on disk tells it.
    """
    beside = Path(os.path.realpath(place.parent))
    real = Path(os.path.realpath(place))
    root = real.parent
    if real.name != package.name:
        raise TargetError(
            f"the package {package.name} lies in {real}: expected a folder that is called "
            f"{package.name} itself, because the paths of a patch begin with {package.name}/. "
            "Rename the folder, and whatever leads there"
        )
    try:
        infos = _infos(beside)
    except OSError as error:
        raise TargetError(unreadable(beside, error)) from error
    owner = _only_owner(beside, infos, package)
    if owner is None:
        version = _source_version(root, package) or _editable_version(root, path, package) or stated
    else:
        version = owner.version
    keeps_rows = owner is not None and beside == root and _keeps_rows(owner, package)
    target = Target.of(
        version,
        name,
        package,
        file_reader(root, package),
        root=root,
        record=Record(owner.record, package) if owner else None,
        record_file=owner.info / "RECORD" if owner and keeps_rows else None,
        warnings=warnings,
        lister=None if owner else lambda: modules_below(root, package),
    )
    doubts = _doubts(root, beside, infos, owner, package) if owner else ()
    return replace(target, warnings=(*target.warnings, *doubts))


def modules_below(root: Path, package: Package) -> list[str]:
    """The paths of a package's modules below ``root``, those of outer folders first.

    Links are not followed, what cannot be listed is passed over, and at most ``MOST_ENTRIES`` are
    looked at: somebody else may have made the folder.
    """
    modules: list[str] = []
    pending, remaining = [package.name], MOST_ENTRIES
    while pending:
        folder = pending.pop(0)
        try:
            with os.scandir(root / folder) as scan:
                entries = sorted(islice(scan, remaining), key=lambda entry: entry.name)
        except OSError:
            continue
        remaining -= len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{folder}/{entry.name}")
            elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                modules.append(f"{folder}/{entry.name}")
    return modules


def file_reader(root: Path, package: Package) -> Callable[[str], bytes | None]:
    """Read files below ``root``, never through a link that leaves it.

    The function that is returned raises ``TargetError`` where something other than a plain file
    of at most ``MAX_FILE_BYTES`` is at the path.
    """

    def read(path: str) -> bytes | None:
        try:
            return read_below(root, path, MAX_FILE_BYTES)
        except OSError:  # a link on the way, or a problem that is told with where links lead
            return read_through_links(path)

    def read_through_links(path: str) -> bytes | None:
        full = root / path
        real = os.path.realpath(full)
        out = way_out(root, path, real)
        if out is not None:
            raise TargetError(
                f"{out[0]} leads out of the target, to {out[1]}: expected it inside {root}. "
                "Replace the symbolic link by a copy (with uv: --link-mode copy)"
            )
        if not os.path.lexists(real) and full.is_symlink():
            raise TargetError(
                f"{full} is a symbolic link to {real}, where nothing is: expected a file. "
                f"Reinstall {package.title}"
            )
        try:
            return read_below(root, os.path.relpath(real, root), MAX_FILE_BYTES)
        except OSError as error:
            raise TargetError(unreadable(full, error)) from error

    return read


def _doubts(
    root: Path, beside: Path, infos: Mapping[str, str], owner: Distribution, package: Package
) -> Iterator[str]:
    """Tell where a package's files and its metadata, or the metadata of two, name two releases."""
    stated = version_in_source(read_bytes(root / package.name / "_version.py") or b"")
    if stated is not None and not _same_version(stated, owner.version):
        yield (
            f"{owner.info.name} says {owner.name} {owner.version}, but {package.name}/_version.py "
            f"says {stated}: the installation is a mixture; reinstall {package.title}"
        )
    rivals = [name for name, key in infos.items() if key == owner.key and name != owner.info.name]
    if rivals:
        yield (
            f"{beside} holds {owner.info.name} and {' and '.join(rivals)}: {owner.info.name} was "
            f"taken, because only its RECORD lists {package.name}/, but pip and importlib may read "
            f"another; reinstall {package.title}"
        )


def _same_version(text: str, other: str) -> bool:
    try:
        return parse_release(text) == parse_release(other)
    except ValueError:
        return text == other


def _expect(folder: Path, name: str, package: Package) -> None:
    try:
        with os.scandir(folder):
            pass
        if (folder / package.initial).is_file():
            return
    except OSError as error:
        raise TargetError(unreadable(folder, error)) from error
    content = "found none"
    if (folder / package.name).is_dir():
        content = (
            f"found a folder {package.name}/ without __init__.py, as an uninstalled "
            f"{package.title} leaves behind"
        )
    raise Absent(
        f"{name}: expected a folder that holds {package.initial} (site-packages, a checkout or an "
        f"unpacked sdist), {content}.{_suggestion(folder, package)}"
    )


def _suggestion(folder: Path, package: Package) -> str:
    real = Path(os.path.realpath(folder))
    for base in (real, *real.parents[:3]):
        if base.name == package.name and (base / "__init__.py").is_file():
            return f" It lies inside the package itself: name {base.parent}"
    patterns = (
        f"lib*/python3*/site-packages/{package.initial}",
        f"Lib/site-packages/{package.initial}",
        f"*/{package.initial}",
    )
    for pattern in patterns:
        for file in sorted(real.glob(pattern)):
            return f" There is one further down: name {file.parent.parent}"
    return f" Name {targets_of(package)}"


def read_bytes(path: Path) -> bytes | None:
    """The file's bytes, ``None`` where it is not there.

    :raises TargetError: if it is there and cannot be read, or is not a plain file of bounded size.
    """
    try:
        return read_regular(path)
    except OSError as error:
        raise TargetError(unreadable(path, error)) from error


def unreadable(path: Path, error: OSError) -> str:
    """What to say where a path is not read, or the system refuses to let it be."""
    if isinstance(error, UnfitFile):
        return f"{path}: {error.strerror}"
    what = error.strerror or str(error)
    advice = ""
    if isinstance(error, PermissionError):
        advice = "; run overlay as a user who may read it"
    return f"{path}: expected to read it, the system says: {what}{advice}"


def _infos(folder: str | Path) -> dict[str, str]:
    """The ``.dist-info`` folders in a folder, sorted: name -> its distribution's, normalized.

    :raises OSError: if the folder cannot be listed.
    """
    stems = {name: name.removesuffix(".dist-info") for name in sorted(os.listdir(folder))}
    return {
        name: distribution_name(stem.rpartition("-")[0] or stem)
        for name, stem in stems.items()
        if name != stem
    }


def _only_owner(folder: Path, infos: Mapping[str, str], package: Package) -> Distribution | None:
    """The one distribution in ``folder`` whose RECORD lists a package, ``None`` where none does.

    Distributions with its name in theirs are asked first and, where one of them owns it, no other:
    an environment may hold hundreds, and RECORDs of megabytes.

    :raises TargetError: if two do: which files are whose cannot be told.
    """
    likely = [name for name, key in infos.items() if package.key in key]
    unlikely = [name for name in infos if name not in likely]
    owning = _owning(folder, likely, package) or _owning(folder, unlikely, package)
    if len(owning) > 1:
        names = " and ".join(f"{each.name} {each.version} ({each.info.name})" for each in owning)
        raise TargetError(
            f"{folder}: expected one distribution that owns {package.name}/, found {len(owning)}: "
            f"{names}. They overwrote each other's files. Uninstall all of them, then install the "
            "one that you want"
        )
    return owning[0] if owning else None


def _owning(folder: Path, names: Sequence[str], package: Package) -> list[Distribution]:
    owning = []
    for name in names:
        info = folder / name
        record = read_bytes(info / "RECORD")
        if record is None or not owns(record, package):
            continue
        metadata = read_bytes(info / "METADATA") or b""
        stem, _, version = name[: -len(".dist-info")].rpartition("-")
        owning.append(
            Distribution(
                name=header(metadata, "Name") or stem.replace("_", "-"),
                version=header(metadata, "Version") or version,
                info=info,
                record=record,
            )
        )
    return owning


def _keeps_rows(owner: Distribution, package: Package) -> bool:
    """Whether the overlay's rows of a package go into the RECORD of the distribution that owns it.

    There is one block of them in a RECORD.  Of several packages that one distribution brings, it
    is that of the package with its name, else of the first.
    """
    if owner.key == distribution_name(package.name) or may_list_packages(owner.record) == 1:
        return True
    packages = packages_in(owner.record)
    called = [name for name in packages if distribution_name(name) == owner.key]
    return [*called, *packages][0] == package.name


def _source_version(root: Path, package: Package) -> str | None:
    """The version of a source tree without an installed distribution; git is not asked.

    Looked for in ``_version.py``, ``PKG-INFO``, an egg-info and ``version.txt``, in that order: the
    first is what the package itself would answer.
    """
    content = read_bytes(root / package.name / "_version.py")
    if content is not None and (version := version_in_source(content)):
        return version
    candidates = [root / "PKG-INFO", root / f"{package.name}.egg-info" / "PKG-INFO"]
    for path in candidates:
        content = read_bytes(path)
        if content is not None and (version := header(content, "Version")):
            return version
    for path in (root / "version.txt", root / package.name / "version.txt"):
        content = read_bytes(path)
        if content is not None and (text := content.decode("utf-8", "replace").strip()):
            return text.split()[0]
    return None


def _editable_version(root: Path, path: Sequence[str], package: Package) -> str | None:
    """The version of the distribution that ``pip install --editable`` left for a source tree."""
    for entry in path:
        try:
            infos = _infos(entry or ".")
        except OSError:
            continue  # sys.path holds archives and folders that do not exist: nothing to look at
        for name, key in infos.items():
            if package.key not in key:
                continue
            info = Path(entry) / name
            if (source := _editable_source(info)) and source in (root, *root.parents):
                return header(read_bytes(info / "METADATA") or b"", "Version")
    return None


def _editable_source(info: Path) -> Path | None:
    raw = read_bytes(info / "direct_url.json")
    if raw is None:
        return None
    try:
        data = parse_json(raw)
        editable = bool(data["dir_info"]["editable"])
        url = urlsplit(str(data["url"]))
        if not editable or url.scheme != "file":
            return None
        return Path(os.path.realpath(unquote(url.path)))
    except (ValueError, KeyError, TypeError):
        return None  # written by something else than an editable install


_ALGORITHM = "sha256="

#: The end of the path of a package's first module.
_INITIAL = re.compile(rb'/__init__\.py"?(?=[,\r\n]|$)')

_VERSION_PY = re.compile(
    r"^(?:__version__|version)\s*(?:=\s*(?:__version__|version)\s*)?=\s*(['\"])([^'\"\n]+)\1",
    re.MULTILINE,
)


class Row(NamedTuple):
    """A file that a RECORD lists.

    :ivar sha256: hex; ``None`` where the row has none, as those of bytecode and of the ledger.
    :ivar size: in bytes; ``None`` where the row has none.
    """

    path: str
    sha256: str | None = None
    size: int | None = None


class Record(Mapping[str, str]):
    """Path to sha256 (hex) for the rows under a package.

    It is long, and few of its rows are asked for: it is read on first use, and a hash is decoded
    when it is asked for.

    Rows without a sha256, such as those of bytecode, are left out: nothing can be compared.  So
    are the overlay's own rows, for they tell nothing about the release.

    >>> from overlay.package import VLLM
    >>> row = b"vllm/a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\\r\\n"
    >>> dict(Record(row, VLLM))
    {'vllm/a.py': 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'}
    """

    def __init__(self, raw: bytes, package: Package) -> None:
        self._raw = raw
        self._package = package
        self._code_of: dict[str, str] | None = None
        self._listed: set[str] = set()

    @property
    def _codes(self) -> dict[str, str]:
        """Path -> second field; of a path that is listed twice the last that is a sha256."""
        if self._code_of is None:
            self._code_of, folder = {}, f"{self._package.name}/"
            for path, code, _ in _fields(release_part(self._raw, self._package)):
                if not path.startswith(folder):
                    continue
                self._listed.add(path)
                if not code.startswith(_ALGORITHM):
                    continue
                if path not in self._code_of or _hex(code) is not None:
                    self._code_of[path] = code
        return self._code_of

    @property
    def without_hash(self) -> frozenset[str]:
        """The files that are listed, and of which nothing can be compared; without bytecode."""
        codes = self._codes
        return frozenset(
            path
            for path in self._listed
            if not path.endswith(".pyc") and _hex(codes.get(path, "")) is None
        )

    def __getitem__(self, path: str) -> str:
        digest = _hex(self._codes[path])
        if digest is None:
            raise KeyError(path)
        return digest

    def __iter__(self) -> Iterator[str]:
        return (path for path, code in self._codes.items() if _hex(code) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def header(metadata: bytes, name: str) -> str | None:
    """A header's value from METADATA or PKG-INFO, such as that of ``Version``."""
    head = metadata.replace(b"\r\n", b"\n").split(b"\n\n", 1)[0].decode("utf-8", "replace")
    # No regular expression: compiling one would take each process of vLLM longer than the rest.
    for line in head.split("\n"):
        key, _, value = line.partition(":")
        if key.lower() == name.lower() and len(value.split()) == 1:
            return value.strip()
    return None


def version_in_source(content: bytes) -> str | None:
    """The version that a package's ``_version.py`` states."""
    match = _VERSION_PY.search(content.decode("utf-8", "replace"))
    return match[2] if match else None


def owns(raw: bytes, package: Package) -> bool:
    """Whether the distribution with this RECORD brought a package."""
    row = f"{package.initial},".encode()
    return raw.startswith(row) or b"\n" + row in raw


def may_list_packages(record: bytes) -> int:
    """The most packages that a RECORD can list; cheaper than ``packages_in``, and never too low."""
    return sum(
        b"/" not in record[_start_of_line(record, match.start()) : match.start()]
        for match in _INITIAL.finditer(record)
    )


def _start_of_line(data: bytes, place: int) -> int:
    # The nearest line feed is near; before it nothing has to be looked at.
    start = data.rfind(b"\n", 0, place) + 1
    return max(start, data.rfind(b"\r", start, place) + 1)


def packages_in(record: bytes) -> tuple[str, ...]:
    """The names of the packages that a RECORD lists, in order."""
    paths = (path for path, _, _ in _fields(record) if path.endswith("/__init__.py"))
    return tuple(sorted(path.partition("/")[0] for path in paths if path.count("/") == 1))


def release_part(record: bytes, package: Package) -> bytes:
    """RECORD without the overlay's block: what the installer wrote about the release."""
    start = _block(record, package)
    return record if start is None else record[:start]


def our_rows(record: bytes, package: Package) -> tuple[Row, ...]:
    """The rows of the overlay's block, the ledger's first; empty without a block."""
    start = _block(record, package)
    return () if start is None else tuple(_rows(record[start:]))


def _rows(record: bytes) -> Iterator[Row]:
    return (Row(path, _hex(code), _size(size)) for path, code, size in _fields(record))


def _fields(record: bytes) -> Iterator[Sequence[str]]:
    """The first three fields of each row of a RECORD, empty ones where there are fewer.

    What is not CSV is left out, for RECORD is a stranger's data.
    """
    reader = csv.reader(io.StringIO(record.decode("utf-8", "surrogateescape"), newline=""))
    while True:
        try:
            for fields in reader:
                if len(fields) == 3:
                    yield fields
                elif fields:
                    yield [*fields, "", ""][:3]
        except csv.Error:
            continue  # with the next line
        return


def _hex(code: str) -> str | None:
    """The sha256 in a row's second field, ``None`` where it holds another hash, or none."""
    encoded = code.removeprefix(_ALGORITHM)
    if encoded == code:
        return None
    try:
        digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (binascii.Error, ValueError):
        return None
    return digest.hex() if len(digest) == 32 else None


def _code(digest: str) -> str:
    """The second field of a row with this sha256 (hex)."""
    return _ALGORITHM + base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()


def _size(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def with_rows(record: bytes, rows: Iterable[Row], package: Package) -> bytes:
    """RECORD with the overlay's block in its place.

    :param rows: those that come after the ledger's, which has no hash.
    """
    base = release_part(record, package)
    end = "\r\n" if base.endswith(b"\r\n") else "\n"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end)
    for row in (Row(package.ledger_path), *rows):
        code = "" if row.sha256 is None else _code(row.sha256)
        writer.writerow([row.path, code, "" if row.size is None else row.size])
    block = out.getvalue().encode("utf-8", "surrogateescape")
    gap = end.encode() if base and not base.endswith(b"\n") else b""
    return base + gap + block


def without_rows(
    record: bytes, before: str | None, paths: Iterable[str], package: Package
) -> bytes:
    """RECORD as it was before the overlay.

    :param before: its sha256 then; the result has it where nobody else wrote since.
    :param paths: the paths of the overlay's rows; where somebody did, just these are taken out.
    """
    ours = {package.ledger_path, *paths}
    base = release_part(record, package)
    if {row.path for row in our_rows(record, package)} <= ours:
        for candidate in (base, base.removesuffix(b"\n"), base.removesuffix(b"\r\n")):
            if sha256(candidate) == before:
                return candidate
    lines = [
        line
        for line in record.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        if not any(row.path in ours for row in _rows(line.encode("utf-8", "surrogateescape")))
    ]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _block(record: bytes, package: Package) -> int | None:
    """The offset at which the overlay's block begins, or ``None``."""
    mark = f"{package.ledger_path},".encode()
    if record.startswith(mark):
        return 0
    offset = record.find(b"\n" + mark)
    return None if offset < 0 else offset + 1
