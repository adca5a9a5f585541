"""Caches: the private one of patched modules, real files that are compiled, and vLLM's own.

An entry is a folder named by its key.  It holds the patched text of each module under the module's
own path, the code objects compiled from it, and ``manifest.json`` with a sha256 of every file and
of each pristine file that the entry was made from, below a line with its own sha256.  An entry is
written beside its place and renamed into it, so that any number of processes may make the same one;
every byte is checked against the manifest, and manifest, files and folders against their owner and
mode, before anything of it is executed.  The checked text is what ``linecache`` gives from then on,
whatever becomes of the file.

vLLM's own caches have to see that this process runs patched code.  Two of them ask the
installation's files, which stay pristine, what the code is:

- the model-info cache (``vllm.model_executor.models.registry``) is keyed on a hash of the model's
  file on disk;
- compiled models that are loaded ahead of time (``vllm.compilation.decorators``) are keyed on the
  release, the forward's name and its first line, and verified against the files on disk.

Both keep the entries of a patch set apart under its key.  The compile cache proper needs nothing:
it hashes the files that the traced code objects name, which are the patched copies.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import linecache
import marshal
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from overlay.cache import ABANDONED_AFTER, PrivateFolder, make_folders
from overlay.errors import OverlayError
from overlay.in_memory.import_watch import when_imported
from overlay.untrusted import NotPrivate, parse_json, read_regular, require_private, sha256

#: Entries, and bytes in all of them, kept in a cache; the least recently used go first.
MAX_ENTRIES = 16

MAX_BYTES = 64 * 2**20

_MAKING = ".making-"

_SCHEMA = 2

_MANIFEST = "manifest.json"


class StoreError(OverlayError):
    """An entry is damaged, foreign or open to others; its content is never executed."""


@dataclass(frozen=True)
class StoredModule:
    """One module of an entry.

    :ivar path: the module's path relative to the folder that holds ``vllm/``.
    :ivar pristine: sha256 of the release's own file, ``None`` for an added module.
    :ivar file: the patched text as a real file; its name is the code objects' ``co_filename``.
    """

    path: str
    pristine: str | None
    file: Path
    source: bytes
    code: CodeType


@dataclass(frozen=True)
class CacheEntry:
    """A verified entry: the patched modules of one patch set on one vLLM.

    :ivar facts: what the maker wrote beside the modules (features, digest); JSON.
    """

    folder: Path
    modules: tuple[StoredModule, ...]
    facts: Mapping[str, object]

    def rows(self, name: str) -> list[Any]:
        """The facts of one name, of which the maker wrote a list.

        :raises StoreError: if there is none.
        """
        rows = self.facts.get(name)
        if not isinstance(rows, list):
            raise StoreError(f"the cache entry lacks {name}; remove it")
        return rows


def entry_key(*parts: str) -> str:
    """The name of an entry: every ``part`` that decides its content, and this Python.

    The bytecode depends on the interpreter and on ``-O``, so both belong to the key.
    """
    cache_tag = sys.implementation.cache_tag or sys.implementation.name
    python = f"{cache_tag}-{sys.hexversion:x}-O{sys.flags.optimize}"
    return sha256("\0".join((f"schema {_SCHEMA}", python, *parts)).encode())


class Store:
    """The cache in one folder.

    :param folder: made where missing, with mode 0700.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: str) -> CacheEntry | None:
        """The verified entry, or ``None`` where there is none.

        ``linecache`` holds its texts afterwards, so that ``inspect``, Triton and tracebacks show
        what was verified even if a file is changed or evicted later.

        :raises StoreError: where an entry is there but must not be used.
        """
        folder = self.folder / key
        if not os.path.lexists(folder):
            return None
        for place in (self.folder, folder):
            _require_private(place)
        manifest = _read_manifest(folder)
        rows = _rows(folder, manifest)
        # Who can write a folder can exchange the files in it after they were verified.
        for place in sorted({folder / above for path, _ in rows for above in Path(path).parents}):
            _require_private(place)
        modules = tuple(_load_module(folder, path, row) for path, row in rows)
        _show_sources(modules)
        with contextlib.suppress(OSError):  # only the order of eviction depends on it
            os.utime(folder)
        facts = manifest.get("facts")
        return CacheEntry(folder, modules, facts if isinstance(facts, dict) else {})

    def save(
        self,
        key: str,
        texts: Mapping[str, tuple[bytes, str | None]],
        facts: Mapping[str, object],
    ) -> CacheEntry:
        """Make the entry from ``path -> (patched text, sha256 of the pristine file)``.

        :raises OSError: if the folder cannot be written.
        :raises SyntaxError: if a text does not compile.
        """
        try:
            PrivateFolder(self.folder).make()
        except NotPrivate as error:
            raise StoreError(str(error)) from error
        final = self.folder / key
        unfinished = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self.folder))
        try:
            with _locked(unfinished):
                rows = {
                    path: _write_module(unfinished, final, path, text, pristine)
                    for path, (text, pristine) in sorted(texts.items())
                }
                manifest = {"schema": _SCHEMA, "modules": rows, "facts": dict(facts)}
                body = json.dumps(manifest, sort_keys=True).encode()
                _write(unfinished / _MANIFEST, sha256(body).encode() + b"\n" + body)
                self._publish(unfinished, final)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        PrivateFolder(self.folder).make_room(MAX_ENTRIES, MAX_BYTES, keep=key)
        self._sweep()
        entry = self.load(key)
        if entry is None:
            raise StoreError(f"{final} vanished while it was being made; start again")
        return entry

    def discard(self, key: str) -> None:
        """Remove an entry that must not be used, so that it can be made again.

        :raises OSError: if it cannot be removed (somebody else owns it).
        """
        folder = self.folder / key
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)

    @staticmethod
    def _publish(unfinished: Path, final: Path) -> None:
        try:
            unfinished.rename(final)
        except OSError:
            # Another process made the same entry first; load() verifies whichever is there.
            if not final.is_dir():
                raise

    def _sweep(self) -> None:
        """Remove what processes that were killed while they wrote have left."""
        for unfinished in self.folder.glob(f"{_MAKING}*"):
            # It is held by a living process, or gone, or its file system has no locks.
            with contextlib.suppress(OSError), _locked(unfinished, required=True) as age:
                if age > ABANDONED_AFTER:
                    shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _locked(unfinished: Path, *, required: bool = False) -> Iterator[float]:
    """Lock an unfinished entry, and give the seconds since it was last changed.

    The kernel takes the lock back from a process that ends in whatever way.

    :raises OSError: if the folder cannot be opened, or cannot be locked and ``required`` is set.
    """
    descriptor = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if required:
                raise
        yield time.time() - os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def _require_private(place: Path) -> None:
    """Refuse what somebody else could have written.

    :raises StoreError: also where nothing is found: another process has just removed it.
    """
    try:
        require_private(place)
    except NotPrivate as error:
        raise StoreError(str(error)) from error


def _read_private(file: Path) -> bytes:
    _require_private(file)
    try:
        data = read_regular(file, follow=False)
    except OSError as error:
        raise StoreError(f"{file}: expected a file of the cache entry, found {error}") from error
    if data is None:
        raise StoreError(f"{file}: expected a file of the cache entry, found nothing")
    return data


def _read_manifest(folder: Path) -> dict[str, object]:
    digest, _, body = _read_private(folder / _MANIFEST).partition(b"\n")
    if sha256(body).encode() != digest:
        raise StoreError(f"{folder / _MANIFEST} is damaged: its text has sha256 {sha256(body)}")
    try:
        manifest = parse_json(body)
    except ValueError as error:
        raise StoreError(f"{folder / _MANIFEST} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != _SCHEMA:
        raise StoreError(f"{folder / _MANIFEST} is not of schema {_SCHEMA}")
    return manifest


def _rows(folder: Path, manifest: Mapping[str, object]) -> list[tuple[str, dict[str, object]]]:
    modules = manifest.get("modules")
    if not isinstance(modules, dict) or not all(isinstance(row, dict) for row in modules.values()):
        raise StoreError(f"{folder / _MANIFEST} lists no modules")
    return sorted(modules.items())


def _load_module(folder: Path, path: str, row: Mapping[str, object]) -> StoredModule:
    file = folder / path
    source, bytecode = _read_private(file), _read_private(file.with_suffix(".code"))
    for name, data, expected in (
        (file, source, row.get("source")),
        (file.with_suffix(".code"), bytecode, row.get("code")),
    ):
        if sha256(data) != expected:
            raise StoreError(f"{name} has sha256 {sha256(data)}, expected {expected}")
    code = marshal.loads(bytecode)
    if not isinstance(code, CodeType):
        raise StoreError(f"{file.with_suffix('.code')} holds no code object")
    pristine = row.get("pristine")
    return StoredModule(path, None if pristine is None else str(pristine), file, source, code)


def _show_sources(modules: Iterable[StoredModule]) -> None:
    for module in modules:
        text = importlib.util.decode_source(module.source)
        lines = io.StringIO(text).readlines()  # at "\n" only, as the compiler counts
        # Without a modification time an entry is never checked against the disk.
        for name in {module.code.co_filename, str(module.file)}:
            linecache.cache[name] = (len(text), None, lines, name)


def _write_module(
    unfinished: Path, final: Path, path: str, text: bytes, pristine: str | None
) -> dict[str, str | None]:
    # The code names the file under its final name, so that tracebacks find it.
    code = compile(text, str(final / path), "exec", dont_inherit=True)
    bytecode = marshal.dumps(code)
    _write(unfinished / path, text)
    _write((unfinished / path).with_suffix(".code"), bytecode)
    return {"pristine": pristine, "source": sha256(text), "code": sha256(bytecode)}


def _write(file: Path, data: bytes) -> None:
    make_folders(file.parent, 0o700)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


_REGISTRY = "vllm.model_executor.models.registry"

_DECORATORS = "vllm.compilation.decorators"

#: What a model class and its forward are made of; elsewhere nothing is traced or inspected.
_MODEL_CODE = (
    "vllm.model_executor.",
    "vllm.models.",
    "vllm.lora.",
    "vllm.compilation.",
    "vllm.attention.",
    "vllm.v1.attention.",
    "vllm.distributed.",
    "vllm.ir.",
    "vllm.kernels.",
    "vllm.utils.",
    "vllm._",
    "vllm.forward_context",
    "vllm.config.",
    "vllm.platforms.",
)


def concerned(modules: Iterable[str]) -> bool:
    """Whether any of the patched modules can change what those caches hold.

    Of a module of another package nothing is known, so it can.
    """
    return any(name.startswith(_MODEL_CODE) or not name.startswith("vllm.") for name in modules)


def keep_apart(key: str, required: bool = False) -> None:
    """Keep this process's entries of both caches apart under ``key``, at once or when imported.

    :param key: the digest of the patch set and its switches.
    :param required: whether vLLM must not go on where it cannot be done.
    """
    for name, act, what in (
        (_REGISTRY, _model_info, "what it keeps of models"),
        (_DECORATORS, _ahead_of_time, "what it compiled ahead of time"),
    ):
        lost = f"{what} is not kept apart from that of other code; give VLLM_CACHE_ROOT a folder"
        lost += " of its own for this patch set"
        when_imported(name, functools.partial(act, key=key), None if required else lost)


def _model_info(registry: ModuleType, key: str) -> None:
    model = registry._LazyRegisteredModel
    stock = model._get_cache_dir

    def cache_dir() -> Path:
        folder: Path = stock() / f"overlay-{key[:16]}"
        return folder

    model._get_cache_dir = staticmethod(cache_dir)


def _ahead_of_time(decorators: ModuleType, key: str) -> None:
    stock = decorators._model_hash_key

    def model_hash_key(forward: Callable[..., Any]) -> str:
        return hashlib.sha256(f"{stock(forward)} {key}".encode()).hexdigest()

    # To mypy it is any module.
    decorators._model_hash_key = model_hash_key  # type: ignore[attr-defined]
