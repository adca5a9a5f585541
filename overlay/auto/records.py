"""What each process says it runs: one small file a process, in the user's runtime folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

SCHEMA = 1


@dataclass(frozen=True)
class ModuleRecord:
    """One patched module after it was executed.

    :ivar sha256: of the text that ran; :ivar scopes: scope -> ``runs``, ``differs``, ``unseen``.
    """

    module: str
    sha256: str
    scopes: dict[str, str]

    @property
    def state(self) -> str:
        """``runs``, or ``differs`` where a scope holds other code than planned."""
        return "differs" if "differs" in self.scopes.values() else "runs"


@dataclass(frozen=True)
class ProcessRecord:
    """What one process runs.

    :ivar started: the kernel's start time of the process, so that a reused pid is noticed.
    :ivar role: ``api server``, ``engine core`` or ``worker``, as far as it is known.
    :ivar way: ``memory``, ``disk``, ``none`` or ``off``.
    """

    pid: int
    started: str
    host: str
    role: str
    rank: int | None
    vllm: str
    root: str
    way: str
    digest: str
    summary: str
    modules: tuple[ModuleRecord, ...] = field(default=())

    def with_module(self, module: ModuleRecord) -> ProcessRecord:
        """The record after another module was executed (or executed again)."""
        others = tuple(one for one in self.modules if one.module != module.module)
        return replace(self, modules=(*others, module))


def folder() -> Path:
    """The folder of records: the user's runtime folder, or a private one among temporary files."""
    import platformdirs

    base = Path(platformdirs.user_runtime_path("vllm-overlay", appauthor=False))
    with contextlib.suppress(OSError):
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if base.stat().st_uid == os.geteuid() and os.access(base, os.W_OK):
            return base
    fallback = Path(tempfile.gettempdir()) / f"vllm-overlay-{os.geteuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    return fallback


def start_time(pid: int) -> str:
    """The kernel's start time of a process (clock ticks since boot), empty where unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def role() -> str:
    """This process's part in vLLM, from its name and arguments."""
    import multiprocessing

    name = multiprocessing.current_process().name
    text = f"{name} {' '.join(sys.argv)}".lower()
    for needle, found in (
        ("worker", "worker"),
        ("enginecore", "engine core"),
        ("api", "api server"),
    ):
        if needle in text:
            return found
    return "main" if name == "MainProcess" else name


def write(record: ProcessRecord) -> None:
    """Write this process's record, whole or not at all.

    :raises OSError: if the folder cannot be written.
    """
    place = folder() / f"{record.pid}.json"
    temporary = place.with_suffix(f".{os.getpid()}.new")
    temporary.write_text(json.dumps({"schema": SCHEMA, **asdict(record)}))
    temporary.chmod(0o600)
    temporary.replace(place)


def read_all() -> Iterator[ProcessRecord]:
    """The records of processes that still run; those of others are removed."""
    for place in sorted(folder().glob("*.json")):
        try:
            found = json.loads(place.read_text())
            if found.pop("schema") != SCHEMA:
                continue
            modules = tuple(ModuleRecord(**one) for one in found.pop("modules"))
            record = ProcessRecord(**found, modules=modules)
        except (OSError, ValueError, TypeError, KeyError):
            continue  # being written, or another version's; its process is listed without a record
        if record.host == socket.gethostname() and record.started == start_time(record.pid):
            yield record
        else:
            place.unlink(missing_ok=True)
