"""Targets as a stranger may leave them: hostile journals and ledgers, links, special files.

A sandbox is a folder with a target, ``site``, and beside it ``outside``, the canary: a tree that no
command may change, with the same files as the target, so that whatever is led there finds what it
expects.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from overlay.untrusted import parse_json, read_regular, sha256
from tests.support import fake_vllm, faults
from tests.support.cli import ADDED, PROPOSER, RUNNER

STATE = ".vllm-overlay"
JOURNAL, LEDGER = f"{STATE}/journal.json", f"{STATE}/ledger.json"
INFO = "vllm-0.26.0.dist-info"
RECORD = f"{INFO}/RECORD"
PRISTINE = sha256(fake_vllm.files("0.26.0")[PROPOSER])
DECODE = "vllm/v1/spec_decode"

#: Places in a target where something else may lie than belongs there.
PLACES = [
    "vllm",
    "vllm/zz",
    "vllm/v1",
    DECODE,
    f"{DECODE}/__pycache__",
    PROPOSER,
    RUNNER,
    ADDED,
    "vllm/__init__.py",
    "vllm/_version.py",
    STATE,
    f"{STATE}/pristine",
    f"{STATE}/pristine/{PRISTINE}",
    f"{STATE}/.gitignore",
    JOURNAL,
    f"{JOURNAL}.overlay-new",
    f"{STATE}/.ledger.json.overlay-new",
    LEDGER,
    INFO,
    RECORD,
    f"{INFO}/METADATA",
    f"{INFO}/.RECORD.overlay-old",
    *(
        f"{DECODE}/.{name}.py.overlay-{word}"
        for name in ("proposer", "demo")
        for word in ("old", "new")
    ),
]

#: Where links may lead, from the folder that holds the site and the canary.
ENDS = [
    "outside",
    "outside/vllm",
    "outside/vllm/v1",
    f"outside/{DECODE}",
    f"outside/{DECODE}/__pycache__",
    f"outside/{PROPOSER}",
    "outside/empty.py",
    "outside/emptydir",
    "outside/pipe",
    f"outside/{RECORD}",
    f"outside/{STATE}",
    f"outside/{JOURNAL}",
    f"outside/{LEDGER}",
    f"outside/{STATE}/pristine",
    "outside/nothing",
    "site",
    "site/vllm",
    f"site/{RUNNER}",
    "site/nothing",
    "/dev/zero",
    "/dev/null",
    "/proc/self/environ",
]

#: Paths that a journal, a ledger or a RECORD may name.
PATHS = [
    *PLACES,
    "vllm/zz/empty.py",
    "vllm/zz/emptydir",
    "vllm/zz/vllm/v1/spec_decode/proposer.py",
    "vllm/zz/__init__.py",
    "vllm/../../outside/empty.py",
    "../outside/empty.py",
    "/etc/passwd",
    "",
    ".",
    "vllm/v1/empty.py\0",
    "vllm/\ud800.py",
    "vllm/" + "x" * 300 + ".py",
    "other-1.0.dist-info/RECORD",
]


def _known_hashes() -> list[str | None]:
    """Hashes that hostile steps name: of what lies in the canary, of no file, and others."""
    known = [b"", *(content for content in fake_vllm.files("0.26.0").values())]
    return [None, *sorted({sha256(content) for content in known}), "0" * 64]


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(PATHS)
    | st.sampled_from([10**400, float("inf"), "a" * 64])
)

_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)

_hashes = st.sampled_from(_known_hashes())

_paths = st.sampled_from(PATHS)

_steps = st.lists(
    st.fixed_dictionaries({"path": _paths, "before": _hashes, "after": _hashes}), max_size=4
)

journals = st.fixed_dictionaries(
    {
        "schema": st.just(1),
        "action": st.sampled_from(["apply", "revert"]),
        "overlay": st.just("0.1.0"),
        "steps": _steps,
        "made": st.lists(_paths, max_size=2),
        "dropped": st.lists(_paths, max_size=2),
    }
)

_results = st.fixed_dictionaries(
    {
        "digest": st.just("1" * 64),
        "origin": st.text(max_size=5),
        "source": st.none(),
        "feature": st.sampled_from(["demo", "team-capture", "other"]),
        "state": st.sampled_from(["applied", "upstreamed", "pristine"]),
        "files": st.lists(
            st.fixed_dictionaries(
                {
                    "path": _paths,
                    "state": st.sampled_from(["applied", "pristine"]),
                    "patch": st.none(),
                    "hunks": st.just([]),
                    "reason": st.none(),
                }
            ),
            max_size=2,
        ),
        "reason": st.none(),
        "untested": st.booleans(),
    }
)

ledgers = st.fixed_dictionaries(
    {
        "schema": st.sampled_from([1, 2]),
        "overlay": st.just("0.1.0"),
        "release": st.sampled_from(["0.26.0", "0.25.0"]),
        "features": st.lists(_results, max_size=2),
        "entries": st.lists(
            st.fixed_dictionaries(
                {
                    "path": _paths,
                    "before": _hashes,
                    "after": _hashes,
                    "mode": st.sampled_from([0o644, 0o4777]),
                    "size": st.just(1),
                }
            ),
            max_size=4,
        ),
        "folders": st.lists(_paths, max_size=2),
        "record": st.none()
        | st.fixed_dictionaries({"path": _paths, "before": _hashes, "after": _hashes}),
    }
)


@dataclass(frozen=True)
class Edit:
    """One thing that a stranger does to a target; its text tells it in a failure."""

    name: str
    do: Callable[[Path], None]

    def __repr__(self) -> str:
        return self.name


def _clear(place: Path, sandbox: Path) -> bool:
    """Make room at a place of the site; ``False`` where only a link would lead there."""
    parent = Path(os.path.realpath(place.parent))
    if not parent.is_dir() or not parent.is_relative_to(sandbox / "site"):
        return False
    if place.is_symlink() or place.is_file() or (place.exists() and not place.is_dir()):
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    return True


def link(place: str, end: str, relative: bool) -> Edit:
    def do(sandbox: Path) -> None:
        path = sandbox / "site" / place
        to = sandbox / end
        if _clear(path, sandbox):
            path.symlink_to(os.path.relpath(to, os.path.realpath(path.parent)) if relative else to)

    return Edit(f"link {place} -> {end}{' (relative)' if relative else ''}", do)


def special(place: str, kind: str) -> Edit:
    def do(sandbox: Path) -> None:
        path = sandbox / "site" / place
        if not _clear(path, sandbox):
            return
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "huge":
            path.touch()
            os.truncate(path, 17 * 2**20)

    return Edit(f"{kind} at {place}", do)


def content(place: str, data: bytes) -> Edit:
    def do(sandbox: Path) -> None:
        path = sandbox / "site" / place
        state = sandbox / "site" / STATE
        if place.startswith(STATE) and not os.path.lexists(state):
            state.mkdir()
        if _clear(path, sandbox):
            path.write_bytes(data)

    return Edit(f"{place} = {data[:300]!r}", do)


def mutated(place: str, at: int, value: Any) -> Edit:
    """Replace one part of a JSON file that is there."""

    def do(sandbox: Path) -> None:
        path = sandbox / "site" / place
        try:
            # An edit before this one may have put a pipe or a link to /dev/zero there.
            document = parse_json(read_regular(path) or b"")
        except (OSError, ValueError):
            return
        places = list(_parts(document))
        if places:
            holder, key = places[at % len(places)]
            holder[key] = value
            content(place, json.dumps(document).encode()).do(sandbox)

    return Edit(f"{place}: part {at} = {value!r}", do)


def _parts(document: Any) -> Any:
    items = ()
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    for key, value in items:
        yield document, key
        yield from _parts(value)


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


_state_bytes = st.sampled_from([b"", b"[" * 200_000, b'{"a":' * 200_000, b"null"]) | st.binary(
    max_size=40
)

_record_rows = st.lists(
    st.tuples(_paths, st.sampled_from(["sha256=", "sha256=x", "sha256=" + "A" * 43, "\0"])),
    max_size=4,
).map(lambda rows: "".join(f"{path},{code},²\n" for path, code in rows).encode("utf-8", "replace"))

edits = st.one_of(
    st.builds(link, st.sampled_from(PLACES), st.sampled_from(ENDS), st.booleans()),
    st.builds(special, st.sampled_from(PLACES), st.sampled_from(["pipe", "folder", "huge"])),
    st.builds(content, st.just(JOURNAL), journals.map(encoded)),
    st.builds(content, st.just(LEDGER), ledgers.map(encoded)),
    st.builds(content, st.sampled_from([JOURNAL, LEDGER]), _json.map(encoded)),
    st.builds(content, st.sampled_from([JOURNAL, LEDGER, f"{STATE}/.gitignore"]), _state_bytes),
    st.builds(content, st.just(f"{STATE}/pristine/{PRISTINE}"), _state_bytes),
    st.builds(
        content,
        st.just(RECORD),
        _record_rows.map(lambda rows: b"vllm/__init__.py,,\n.vllm-overlay/ledger.json,,\n" + rows),
    ),
    st.builds(mutated, st.sampled_from([JOURNAL, LEDGER]), st.integers(0, 200), _json),
)


def outside(folder: Path) -> None:
    """The canary: the same files as a target, and what an attack would look for."""
    fake_vllm.site_packages(folder)
    cache = folder / DECODE / "__pycache__"
    cache.mkdir()
    for name in ("proposer", "demo", "empty"):
        (cache / f"{name}.cpython-311.pyc").write_bytes(b"compiled")
    (folder / "empty.py").touch()
    (folder / "__init__.py").touch()
    (folder / "emptydir").mkdir()
    (folder / STATE / "pristine").mkdir(parents=True)
    (folder / STATE / "pristine" / PRISTINE).write_bytes(b"other")
    (folder / LEDGER).write_text("{}")
    (folder / JOURNAL).write_text("{}")
    os.mkfifo(folder / "pipe")


class KilledRenaming(faults.FaultyOs):
    """The process dies where the first module would get its new bytes."""

    def replace(self, source: str, destination: str, **folders: int) -> None:
        if destination.endswith(".py") or self.at:
            self.at, self.fault, self.lasting = 1, faults.dying, True
            raise faults.Dead
        os.replace(source, destination, **folders)


Stamp = tuple[int, int, object]


def stamps(root: Path, but: str | None = None) -> dict[str, Stamp]:
    """Mode, modification time and content of everything below a folder, following no link.

    :param but: a name directly below ``root`` that does not count.
    """
    found: dict[str, Stamp] = {}
    folders = [root]
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if folder == root and entry.name == but:
                    continue
                status = entry.stat(follow_symlinks=False)
                what: object = None
                if entry.is_symlink():
                    what = os.readlink(entry.path)
                elif entry.is_dir():
                    folders.append(Path(entry.path))
                elif stat.S_ISREG(status.st_mode):
                    what = status.st_size
                    if status.st_size < 2**20:
                        what = Path(entry.path).read_bytes()
                found[entry.path] = (status.st_mode, status.st_mtime_ns, what)
    return found
