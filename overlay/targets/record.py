"""Read what a distribution says of itself, and write the overlay's own rows into its RECORD."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from overlay.package import Package
from overlay.untrusted import sha256

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
    """The rows of the overlay's block, the ledger's first; none where there is no block."""
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
