"""What each process says it runs: one small file a process, in the user's runtime folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from overlay.results import Way
from overlay.settings import FORMER_IDS
from overlay.untrusted import parse_json, problem_of_owner, read_regular

SCHEMA = 2

#: The most bytes of a record that are read.
MAX_BYTES = 1 << 20

#: Seconds after which the record of another host's process goes.
FORGOTTEN_AFTER = 30 * 86400.0

#: The name of the anonymous memory that holds a process's counts, as ``/proc/PID/fd`` shows it.
COUNTS_NAME = "vllm-overlay-counts"

#: The bytes of a count, and the most bytes that are read of another process's memory.
_COUNT_BYTES, _MAX_COUNTS = 8, 1 << 16

#: The role of a process that neither its name nor its command tells more about.
MAIN = "main"


class CodeState(str, Enum):
    """What runs of a scope or of a module that was planned; ordered from worst to best."""

    #: Another import hook loaded the module: its pristine code runs.
    UNPATCHED = "unpatched"
    #: Other code than planned is there.
    DIFFERS = "differs"
    RUNS = "runs"
    #: There is nothing to compare: an opaque decorator, or a name that is not there.
    UNSEEN = "unseen"


class Effect(Enum):
    """What a feature does in a process."""

    ACTIVE = "active"
    IDLE = "idle"
    #: It reports what it does, and has not yet: the model is not loaded.
    PENDING = "pending"
    #: Its code is there; it does not report what it does.
    PATCHED = "patched"


#: Of the states that parts of a feature are in, the first is its own.
_FIRST = (Effect.ACTIVE, Effect.PENDING, Effect.PATCHED, Effect.IDLE)


class EffectRecord(NamedTuple):
    """What one feature does in the process.

    :ivar text: what is active, or why it is not.
    """

    feature: str
    state: Effect
    text: str


def of_features(effects: Iterable[EffectRecord]) -> tuple[EffectRecord, ...]:
    """Effects, with those of the parts of a feature as one: it is active where any part is."""
    parts: dict[str, list[EffectRecord]] = {}
    for each in effects:
        parts.setdefault(FORMER_IDS.get(each.feature, each.feature), []).append(each)
    return tuple(_of_parts(feature, effects) for feature, effects in parts.items())


def _of_parts(feature: str, parts: list[EffectRecord]) -> EffectRecord:
    texts: dict[Effect, list[str]] = {}
    for part in parts:
        texts.setdefault(part.state, []).append(part.text)
    state = next(state for state in _FIRST if state in texts)
    text = "; ".join(dict.fromkeys(texts[state]))
    if state is Effect.ACTIVE and Effect.IDLE in texts:
        text += f"; but not all of it: {'; '.join(dict.fromkeys(texts[Effect.IDLE]))}"
    return EffectRecord(feature, state, text)


class ModuleRecord(NamedTuple):
    """One patched module after it was executed.

    :ivar sha256: of the text that ran; :ivar scopes: scope -> what runs of it.
    """

    module: str
    sha256: str
    scopes: dict[str, CodeState]

    @property
    def state(self) -> CodeState:
        """``UNPATCHED`` or ``DIFFERS`` where a scope is that, else ``RUNS``."""
        states = self.scopes.values()
        bad = (CodeState.UNPATCHED, CodeState.DIFFERS)
        return next((state for state in bad if state in states), CodeState.RUNS)


class Meaning(NamedTuple):
    """What a number of a process says, for metrics.

    :ivar metric: lower-case words joined by underscores, such as ``replays``.
    :ivar labels: name and value of each label.
    :ivar gauge: whether the number goes up and down; a counter only grows.
    """

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    gauge: bool = False


class ProcessRecord(NamedTuple):
    """What one process runs.

    :ivar started: what ``start_time`` said of it, so that a reused pid is noticed.
    :ivar role: ``api server``, ``engine core`` or ``worker``, as far as it is known.
    :ivar way: where its patched code comes from.
    :ivar left_out: the features that should run here and do not, each with its state and why.
    :ivar required: the features without whose effect vLLM must not serve.
    :ivar effects: what each feature does, as far as it is known.
    :ivar counters: feature and name of each count, such as replays and fallbacks.
    :ivar counts_fd: the file descriptor of the counts in that process; see ``counts_of``.
    :ivar meanings: what each count says, ``None`` where it has its name alone; empty where the
        process runs code that does not say so.
    """

    pid: int
    started: str
    host: str
    role: str
    rank: int | None
    vllm: str
    root: str
    way: Way
    digest: str
    summary: str
    modules: tuple[ModuleRecord, ...] = ()
    left_out: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    effects: tuple[EffectRecord, ...] = ()
    counters: tuple[tuple[str, str], ...] = ()
    counts_fd: int | None = None
    meanings: tuple[Meaning | None, ...] = ()

    def with_module(self, module: ModuleRecord) -> ProcessRecord:
        """The record after another module was executed (or executed again)."""
        other_modules = tuple(each for each in self.modules if each.module != module.module)
        return self._replace(modules=(*other_modules, module))


def counts_of(
    record: ProcessRecord | None, proc: Path = Path("/proc")
) -> tuple[tuple[str, str, int], ...]:
    """The counts of a process now: (feature, name, number); empty where they cannot be read.

    The process keeps its numbers in anonymous memory, and its record says under which file
    descriptor, and which number is which.  Reading costs that process nothing.
    """
    if record is None or record.counts_fd is None or not record.counters:
        return ()
    place = proc / str(record.pid) / "fd" / str(record.counts_fd)
    length = len(record.counters) * _COUNT_BYTES
    try:
        # Another file may have that number where the process is another one, or has ended.
        if not os.readlink(place).startswith(f"/memfd:{COUNTS_NAME}"):
            return ()
        with open(place, "rb") as memory:
            data = memory.read(min(length, _MAX_COUNTS))
    except OSError:
        return ()
    if len(data) < length:
        return ()
    numbers = memoryview(data).cast("Q")
    return tuple((*which, number) for which, number in zip(record.counters, numbers, strict=True))


def folders() -> tuple[Path, ...]:
    """The folders in which records may lie, best first.

    Several, since a service and a user's shell have different environments and must meet.
    """
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [Path(runtime) / "vllm-overlay"] if os.path.isabs(runtime) else []
    places.append(Path(f"/run/user/{user}/vllm-overlay"))
    places += [
        Path(base) / f"vllm-overlay-{user}" for base in dict.fromkeys((_temporary(), "/tmp"))
    ]
    return tuple(places)


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # there is none that can be written
        return "/tmp"


def usable(*, make: bool = True) -> Iterator[Path]:
    """The folders among those that only this user can have written.

    Whether they can be written shows only by writing.

    :param make: whether those that are missing are made; not for a command that only reads.
    """
    for place in folders():
        if make:
            with contextlib.suppress(OSError):
                place.mkdir(mode=0o700)
                place.chmod(0o700)  # whatever the umask
        if _private(place):
            yield place


def _private(place: Path) -> bool:
    """Whether it is a folder that nobody else can have written."""
    try:
        own = place.lstat().st_uid == os.geteuid()
        return own and place.is_dir() and problem_of_owner(place) is None
    except OSError:
        return False


def start_time(pid: int) -> str:
    """The kernel's start time of a process (clock ticks since boot), empty where unknown.

    The address where its stack starts follows, if the kernel tells: a fork keeps it, another
    program has another one, so a child that was forked to become another program is told apart.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    ticks, stack = fields[19], fields[25]
    return ticks if stack == "0" else f"{ticks} {stack}"


def _still(recorded: str, now: str) -> bool:
    """Whether two answers of ``start_time`` are one program's; one may lack the stack."""
    old, new = recorded.split(), now.split()
    return bool(old) == bool(new) and all(a == b for a, b in zip(old, new, strict=False))


def role() -> str:
    """The part of this process in vLLM, from its name and its command."""
    import multiprocessing

    name = multiprocessing.current_process().name
    if name == "MainProcess":
        # A spawned child inherits the arguments of its parent, so they speak for this one only.
        command = " ".join([*(os.path.basename(part) for part in sys.argv[:1]), *sys.argv[1:2]])
        roles = (
            ("default_worker", "worker"),
            ("serve", "api server"),
            ("api_server", "api server"),
        )
    else:
        command = name
        roles = (
            ("worker", "worker"),
            ("enginecore", "engine core"),
            ("api", "api server"),
        )
    part = next((role for needle, role in roles if needle in command.lower()), None)
    return part or (MAIN if name == "MainProcess" else name)


def write(record: ProcessRecord) -> None:
    """Write this process's record, whole or not at all, to the first place that takes it.

    :raises OSError: if none does.
    """
    modules = [module._asdict() for module in record.modules]
    effects = [[each.feature, each.state.value, each.text] for each in record.effects]
    text = json.dumps(
        {"schema": SCHEMA, **record._asdict(), "modules": modules, "effects": effects}
    )
    refused = []
    for place in usable():
        temporary = place / f"{record.host}-{record.pid}.{os.getpid()}.new"
        try:
            temporary.write_text(text)
            temporary.chmod(0o600)
            temporary.replace(place / f"{record.host}-{record.pid}.json")
        except OSError as error:
            refused.append(str(error))
            continue
        return
    raise OSError(f"no folder for it: {'; '.join(refused) or ', '.join(map(str, folders()))}")


def read_all() -> Iterator[ProcessRecord]:
    """The records of this host's processes that still run; those of others are removed.

    Those of another host, where hosts share a folder, are removed when they are old: nobody here
    can tell whether their processes run.
    """
    for place in folders():
        if _private(place):
            for file in sorted(place.glob("*.json")):
                record = _read(file)
                if record is not None:
                    yield record


#: The types of the fields that are kept as they are.
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("started", "host", "role", "vllm", "root", "digest", "summary"), str),
    "pid": int,
    **dict.fromkeys(("rank", "counts_fd"), (int, type(None))),
}


def _decoded(document: dict[str, Any]) -> ProcessRecord | None:
    """The record of a file's JSON, ``None`` for another version's.

    :raises ValueError, TypeError, KeyError, AttributeError: if it is malformed.
    """
    if document.pop("schema") != SCHEMA:
        return None
    for name, types in _TYPES.items():
        if not isinstance(document.get(name), types):
            raise TypeError(f"{name} is {document.get(name)!r}")
    document["left_out"] = tuple(map(str, document["left_out"]))
    document["required"] = tuple(_current(name) for name in document["required"])
    document["way"] = Way(document["way"])
    document["modules"] = tuple(
        ModuleRecord(
            str(module["module"]),
            str(module["sha256"]),
            {str(scope): CodeState(state) for scope, state in module["scopes"].items()},
        )
        for module in document["modules"]
    )
    document["effects"] = of_features(
        EffectRecord(str(feature), Effect(state), str(text))
        for feature, state, text in document["effects"]
    )
    document["counters"] = tuple(
        (_current(feature), str(name)) for feature, name in document["counters"]
    )
    document["meanings"] = tuple(map(_meaning, document.get("meanings", ())))
    return ProcessRecord(**document)


def _current(name: object) -> str:
    return FORMER_IDS.get(str(name), str(name))


def _meaning(row: Any) -> Meaning | None:
    if row is None:
        return None
    metric, labels, gauge = row
    return Meaning(
        str(metric), tuple((str(name), str(value)) for name, value in labels), gauge is True
    )


def _read(file: Path) -> ProcessRecord | None:
    try:
        data = read_regular(file, MAX_BYTES)
        if data is None:
            return None
        record = _decoded(parse_json(data))
        if record is None:
            return None
        age = time.time() - file.stat().st_mtime
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # being written, or another version's: its process is listed without a record
    here = record.host == socket.gethostname()
    if here and _still(record.started, start_time(record.pid)):
        return record
    if here or age > FORGOTTEN_AFTER:
        file.unlink(missing_ok=True)
    return None
