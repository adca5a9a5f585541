"""Read which package index is configured: by pip, completed by uv's variables.

pip itself is asked, in a process of its own: only it knows all of its configuration files and its
built-in default index.  That takes half a second and happens only when something is fetched.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from overlay.errors import PackageIndexError, without_secrets, working_folder

_DEFAULT_TIMEOUT_SECONDS = 15.0

#: The longest timeout: the limits of whole requests are multiples of it.
_MAX_TIMEOUT_SECONDS = 3600

_PIP_SECONDS = 60


@dataclass(frozen=True)
class IndexConfig:
    """The places in which distributions are looked for, and how the network is reached.

    :ivar indexes: URLs of simple indexes, the main one first; :ivar find_links: URLs of pages or
        folders that list distributions; :ivar timeout: seconds without an answer.
    """

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = _DEFAULT_TIMEOUT_SECONDS
    trusted_hosts: frozenset[str] = frozenset()


_lock = threading.Lock()


def configured() -> IndexConfig:
    """What is configured for this process: pip is asked once, not for each of many releases.

    :raises PackageIndexError: as ``read_config``.
    """
    with _lock:
        return _configured_by(frozenset(os.environ.items()))


@lru_cache(maxsize=1)
def _configured_by(variables: frozenset[tuple[str, str]]) -> IndexConfig:
    return read_config(dict(variables))


def read_config(environ: Mapping[str, str] | None = None) -> IndexConfig:
    """What pip and uv are configured to use.

    :raises PackageIndexError: if the configuration cannot be read, or names no index and no pip
        or uv is there to tell its default.
    """
    environ = os.environ if environ is None else environ
    pip = _pip()
    settings = _pip_settings(pip, environ) if pip else _pip_environment(environ)
    options = {
        key: value for section in _SECTIONS for key, value in settings.get(section, {}).items()
    }
    indexes: tuple[str, ...] = ()
    if options.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        main = _main_index(settings, options, environ) or _built_in_default(pip, environ)
        extra = [*_words(options.get("extra-index-url")), *_uv_extra(environ)]
        indexes = tuple(dict.fromkeys(_as_url(each) for each in (main, *extra)))
    links = [*_words(options.get("find-links")), *_split(environ.get("UV_FIND_LINKS"), ",")]
    return IndexConfig(
        indexes=indexes,
        find_links=tuple(dict.fromkeys(_as_url(each) for each in links)),
        cert=options.get("cert")
        or environ.get("REQUESTS_CA_BUNDLE")
        or environ.get("CURL_CA_BUNDLE"),
        client_cert=options.get("client-cert"),
        proxy=options.get("proxy"),
        timeout=_seconds(options.get("timeout") or options.get("default-timeout")),
        trusted_hosts=frozenset(_words(options.get("trusted-host"))),
    )


#: The later one wins, as in pip; ``:env:`` are the variables that start with ``PIP_``.
_SECTIONS = ("global", "download", "install", ":env:")


def _main_index(
    settings: Mapping[str, Mapping[str, str]],
    options: Mapping[str, str],
    environ: Mapping[str, str],
) -> str | None:
    """The main index: a variable comes before a file, pip's before uv's."""
    return (
        settings.get(":env:", {}).get("index-url")
        or _unnamed(environ.get("UV_DEFAULT_INDEX", ""))
        or environ.get("UV_INDEX_URL")
        or options.get("index-url")
    )


def _uv_extra(environ: Mapping[str, str]) -> list[str]:
    urls = [_unnamed(word) for word in _words(environ.get("UV_INDEX"))]
    return [*urls, *_words(environ.get("UV_EXTRA_INDEX_URL"))]


def _unnamed(index: str) -> str:
    """The URL in ``name=url``, uv's way to give an index a name."""
    return re.sub(r"^[A-Za-z0-9._-]+=", "", index)


def _pip() -> list[str] | None:
    """The command that runs a pip: this Python's, the one it bundles, or the one on PATH."""
    try:
        own = importlib.util.find_spec("pip")
    except ValueError:  # something put a module named pip there that was never found by an import
        own = None
    if own is not None:
        return [sys.executable, "-I", "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    if spec is not None and spec.origin is not None:
        for wheel in sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl")):
            return [sys.executable, "-I", f"{wheel}/pip"]
    program = shutil.which("pip")
    return [program] if program else None


def _run(command: list[str], environ: Mapping[str, str]) -> str:
    env = {**environ, "COLUMNS": "1000", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_COLOR": "1"}
    try:
        process = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PIP_SECONDS,
            check=True,
            cwd=working_folder() or os.sep,  # where it is gone, pip ends with a traceback
        )
    except subprocess.CalledProcessError as error:
        lines = without_secrets((error.stderr or "").strip()).splitlines()
        why = lines[-1] if lines else f"exit status {error.returncode}"
        raise PackageIndexError(
            f"expected {' '.join(command)} to tell which package index is configured, it failed: "
            f"{why}. Repair pip's configuration"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PackageIndexError(
            f"expected {' '.join(command)} to tell which package index is configured: {error}"
        ) from error
    return process.stdout


def _pip_settings(pip: list[str], environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Section to option to value, as ``pip config list`` prints them."""
    settings: dict[str, dict[str, str]] = {}
    for line in _run([*pip, "config", "list"], environ).splitlines():
        key, separator, value = line.partition("=")
        section, dot, option = key.rpartition(".")
        if not separator or not dot:
            continue
        try:
            settings.setdefault(section, {})[option] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError) as error:
            raise PackageIndexError(
                "expected 'pip config list' to print option='value', found the line "
                f"{without_secrets(line)!r}"
            ) from error
    return settings


def _pip_environment(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The same where no pip is there to be asked: only the variables can be read."""
    return {
        ":env:": {
            key[4:].lower().replace("_", "-"): value
            for key, value in environ.items()
            if key.startswith("PIP_") and value
        }
    }


def _built_in_default(pip: list[str] | None, environ: Mapping[str, str]) -> str:
    """The index that pip, or else uv, uses where nothing is configured.

    Read from their help: ``pip config`` knows what is configured and not this default, and the
    constant inside pip belongs to a module that is not public and of another interpreter where pip
    comes from PATH.  The overlay itself names no index.
    """
    asks: list[tuple[list[str], str]] = []
    if pip:
        asks.append(([*pip, "download", "--help"], r"--index-url.*?\(default:?\s+([^\s)]+)\)"))
    if uv := shutil.which("uv"):
        asks.append(
            ([uv, "pip", "install", "--help"], r"--default-index.*?by default:\s+<?([^\s>)]+)")
        )
    for command, pattern in asks:
        if match := re.search(pattern, _run(command, environ), re.DOTALL):
            return match[1]
    raise PackageIndexError(
        "no package index: expected one in pip's configuration or in PIP_INDEX_URL, found none, "
        "and neither pip nor uv is there to tell its default. Set PIP_INDEX_URL to the URL of a "
        "simple index, or name a folder, a wheel or an sdist instead of a release"
    )


def _words(value: str | None) -> list[str]:
    return (value or "").split()


def _split(value: str | None, separator: str) -> list[str]:
    return [piece.strip() for piece in (value or "").split(separator) if piece.strip()]


def _as_url(place: str) -> str:
    """A URL for what pip also takes as a path.

    :raises PackageIndexError: if it is neither.
    """
    try:
        if len(urlsplit(place).scheme) > 1:
            return place
    except ValueError as error:
        raise PackageIndexError(
            f"{without_secrets(place)}: expected the URL of a package index; check pip's "
            "configuration (pip config list, PIP_INDEX_URL)"
        ) from error
    return Path(os.path.abspath(os.path.expanduser(place))).as_uri()


def _seconds(value: str | None) -> float:
    """Pip's timeout.

    :raises PackageIndexError: if it is no number of seconds that can be waited for.
    """
    try:
        seconds = float(value) if value else _DEFAULT_TIMEOUT_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_TIMEOUT_SECONDS:
        raise PackageIndexError(
            f"expected pip's timeout to be a number of seconds, at most {_MAX_TIMEOUT_SECONDS}, "
            f"found {value!r}"
        )
    return seconds
