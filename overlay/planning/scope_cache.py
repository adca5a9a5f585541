"""Cache what Python says about a text, by the text's hash, in the user's cache.

Parsing and compiling vLLM's largest files takes most of a plan's time, and the same releases and
the same patched texts come again and again.  Nothing depends on the cache: without it, or with a
damaged one, Python is asked again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from overlay import __version__
from overlay.cache import PrivateFolder, cache_folder
from overlay.planning.scopes import Scopes, Syntax
from overlay.untrusted import NotPrivate, parse_json

#: Changes when the same text would get other scopes.
SCHEMA = 1

#: The most files that are kept; beyond that, all but the newest half go.
MOST = 4000


class Memo(Syntax):
    """``Syntax`` cached on disk.  Only successes are cached.

    :param folder: where the cache lies (default: in the user's cache).
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._folder = PrivateFolder((folder or cache_folder() / "syntax") / _edition())
        self._keys: dict[bytes, str] = {}
        self._usable = True
        self._prepared = False

    def scopes(self, data: bytes, lines: Sequence[str]) -> Scopes:
        """The scopes of a file; see ``Syntax``."""
        if data in self._scopes:
            return super().scopes(data, lines)
        name = f"{self._key(data)}.scopes"
        recalled = _decoded(self._recall(name), len(lines))
        if recalled is not None:
            self._scopes[data] = recalled
            return recalled
        scopes = super().scopes(data, lines)
        self._remember(name, _encoded(scopes, len(lines)))
        return scopes

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
        if not self._usable:
            return None
        try:
            return self._folder.read(name)
        except OSError:
            return None  # this file cannot be read: Python is asked
        except NotPrivate:
            self._usable = False  # others can write there: Python is asked each time
            return None

    def _remember(self, name: str, content: bytes) -> None:
        """Keep ``content``, whole or not at all; where there is no room for it, it is forgotten."""
        if not self._usable:
            return
        try:
            if not self._prepared:
                self._prepared = True
                self._make_room()
            self._folder.write(name, content)
        except (OSError, NotPrivate):
            self._usable = False

    def _make_room(self) -> None:
        self._folder.sweep()
        if len(self._folder.entries()) > MOST:
            self._folder.make_room(MOST // 2)


def _edition() -> str:
    """Name everything that the answers depend on beside the text."""
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
        table = parse_json(content[64:])
        if table["lines"] != lines:
            return None
        return {
            name: [range(*place) for place in places] for name, places in table["scopes"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
