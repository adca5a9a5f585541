"""What Python said about a text, remembered by the text's hash in the user's cache.

Parsing and compiling vLLM's largest files takes most of a plan's time, and the same releases and
the same patched texts come again and again.  Nothing depends on the memory: without it, or with a
damaged one, Python is asked again."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from overlay import __version__
from overlay.cache import cache_folder
from overlay.planning.scopes import Scopes, Syntax

#: Changes when the same text would get other scopes.
SCHEMA = 1

#: Files that are kept; beyond that, the half that was written first goes.
MOST = 4000


class Memo(Syntax):
    """``Syntax`` with a memory.  Only good news is remembered; errors are worked out anew.

    :param folder: where the memory lies (default: in the user's cache).
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._folder = (folder or cache_folder() / "syntax") / _edition()
        self._keys: dict[bytes, str] = {}
        self._usable: bool | None = None
        self._prepared = False

    def scopes(
        self,
        data: bytes,
        lines: Sequence[str],
        derive: Callable[[], Scopes | None] | None = None,
    ) -> Scopes:
        """The scopes of a file; see ``Syntax``."""
        if data in self._scopes:
            return super().scopes(data, lines, derive)
        name = f"{self._key(data)}.scopes"
        known = _decoded(self._recall(name), len(lines))
        if known is not None:
            self._scopes[data] = known
            return known
        found = super().scopes(data, lines, derive)
        self._remember(name, _encoded(found, len(lines)))
        return found

    def compile_error(self, data: bytes, path: str) -> str | None:
        """Why the bytes do not compile, or ``None``; see ``Syntax``."""
        if (data, path) in self._errors:
            return super().compile_error(data, path)
        key = self._key(data)
        name = f"{key}.compiles"
        if self._recall(name) == key.encode():
            self._errors[data, path] = None
            return None
        error = super().compile_error(data, path)
        if error is None:
            self._remember(name, key.encode())
        return error

    def _key(self, data: bytes) -> str:
        if data not in self._keys:
            self._keys[data] = hashlib.sha256(data).hexdigest()
        return self._keys[data]

    def _recall(self, name: str) -> bytes | None:
        if not self._trusted():
            return None
        try:
            return (self._folder / name).read_bytes()
        except OSError:
            return None  # not remembered, or not readable: Python is asked

    def _remember(self, name: str, content: bytes) -> None:
        """Keep ``content``, whole or not at all; where there is no room for it, it is forgotten."""
        temporary = self._folder / f".{name}.{os.getpid()}"
        try:
            if not self._prepared:
                self._prepared = True
                # Its own mode, whatever the umask: what others can write to is not believed.
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _make_room(self._folder)
            if not self._trusted():
                return
            try:
                temporary.write_bytes(content)
                os.replace(temporary, self._folder / name)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        except OSError:
            self._usable = False

    def _trusted(self) -> bool:
        """Whether the folder is there and nobody else can write to it."""
        if self._usable is None:
            try:
                found = self._folder.stat()
            except OSError:
                return False
            mine = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
            self._usable = mine and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return self._usable


def _edition() -> str:
    """Whatever the answers depend on beside the text."""
    return f"{SCHEMA}-{__version__}-{sys.implementation.cache_tag}"


def _encoded(scopes: Scopes, lines: int) -> bytes:
    places = {name: [[r.start, r.stop] for r in ranges] for name, ranges in scopes.items()}
    body = json.dumps({"lines": lines, "scopes": places}, separators=(",", ":")).encode()
    return _checksum(body) + body


def _decoded(content: bytes | None, lines: int) -> Scopes | None:
    """The scopes, unless they are damaged or of another text."""
    if content is None or content[:64] != _checksum(content[64:]):
        return None
    try:
        found = json.loads(content[64:])
        if found["lines"] != lines:
            return None
        return {name: [range(*one) for one in places] for name, places in found["scopes"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _make_room(folder: Path) -> None:
    with os.scandir(folder) as entries:
        names = [entry.path for entry in entries]
    if len(names) <= MOST:
        return

    def written(name: str) -> float:
        try:
            return os.stat(name).st_mtime
        except OSError:
            return 0.0  # another process has made the same room

    for name in sorted(names, key=written)[: len(names) // 2]:
        with suppress(OSError):
            os.unlink(name)
