"""The environment variables as ``doctor`` checks them: what would stop vLLM, or do nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay import settings
from overlay._features.folder import load_all
from overlay._features.switches import Declaration, check_values, declarations
from overlay.errors import OverlayError, UsageError, close_names
from overlay.on_disk import ledger as ledgers
from overlay.untrusted import problem_of_owner

if TYPE_CHECKING:
    from overlay.targets.target import Target

#: Further variables that decide what of the overlay runs, or where vLLM keeps what it compiled.
_WATCHED = (
    "VLLM_PLUGINS",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_CACHE_ROOT",
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY",
    "VLLM_WORKER_MULTIPROC_METHOD",
    "PYTHONPATH",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
)


class SwitchFacts(NamedTuple):
    """A variable that a feature reads.

    :ivar values: those that it takes; empty: any text.
    :ivar value: what it is set to; ``None`` where it is not set.
    """

    feature: str
    name: str
    values: tuple[str, ...]
    default: str
    value: str | None
    text: str


class EnvironmentFacts(NamedTuple):
    """The variables that decide what runs.

    :ivar set: name -> value of those that are set.
    """

    set: Mapping[str, str]
    switches: tuple[SwitchFacts, ...] = ()


class Variables(NamedTuple):
    """What the environment says to the overlay.

    :ivar facts: for the page of ``doctor``.
    :ivar problems: with what vLLM would not start, or what has no effect, a sentence each.
    :ivar notes: what is worth knowing and no problem.
    """

    facts: EnvironmentFacts
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def variables(folders: Iterable[Path], target: Target | None) -> Variables:
    """Check every variable of the overlay, as the plugin would when vLLM starts.

    :param folders: the patches folders that the command was given, the shipped one among them.
    :param target: the installed vLLM, whose ledger may know further features.
    """
    ours = settings.ours()
    names = sorted({*ours, *(name for name in _WATCHED if name in os.environ)})
    values = {name: os.environ[name] for name in names}
    try:
        switches = settings.read()
    except UsageError as error:
        return Variables(EnvironmentFacts(values), (str(error),), ())
    declared = declarations([*folders, *switches.patches])
    checked = check_values(switches.all, declared)
    known_ids = {declaration.id for declaration in declared} | _on_disk(target)
    problems = [*checked.wrong, *checked.unknown]
    for name, ids in (
        ("OVERLAY_FEATURES", switches.features or frozenset()),
        ("OVERLAY_REQUIRED", switches.required - {"all"}),
        ("OVERLAY_REQUIRED_PRESENT", switches.present - switches.required - {"all"}),
    ):
        problems += _unknown_ids(name, ids, known_ids)
    problems += _unread_patches(switches.patches)
    facts = EnvironmentFacts(values, tuple(_switches(declared, ours)))
    return Variables(facts, tuple(problems), (*switches.warnings, *checked.former))


def _unread_patches(folders: Iterable[Path]) -> Iterator[str]:
    """What the plugin does not read of the folders in ``OVERLAY_PATCHES``, and why."""

    for folder in folders:
        try:
            loaded = load_all([folder], private=True)
        except UsageError as error:
            yield f"OVERLAY_PATCHES: {error}"
            continue
        for malformed in loaded.malformed:
            for place in malformed.errors:
                yield f"OVERLAY_PATCHES: {place}"


def _switches(declared: Iterable[Declaration], ours: Mapping[str, str]) -> Iterator[SwitchFacts]:
    for declaration in declared:
        for switch in declaration.switches:
            yield SwitchFacts(
                feature=declaration.id,
                name=switch.name,
                values=tuple(switch.values),
                default=switch.default,
                value=ours.get(switch.name),
                text=switch.text,
            )


def _on_disk(target: Target | None) -> set[str]:
    """The features that are applied, whose folder need not be at hand."""
    if target is None or target.root is None:
        return set()

    try:
        ledger = ledgers.load(target.root)
    except OverlayError:  # told with the target's state
        return set()
    return set() if ledger is None else {entry.result.feature for entry in ledger.applied}


def _unknown_ids(name: str, ids: Iterable[str], known_ids: set[str]) -> Iterator[str]:
    for unknown in sorted(set(ids) - known_ids):
        close = close_names(unknown, sorted(known_ids))
        hint = f"did you mean {close[0]}?" if close else "name its folder in OVERLAY_PATCHES"
        yield (
            f"{name} names {unknown}: expected ids among {', '.join(sorted(known_ids)) or 'none'}; "
            f"{hint}"
        )


def cache_problem(folder: Path, *, allow_group: bool = False) -> str | None:
    """Why nothing could be kept in a ``folder`` of the cache, ``None`` if it could.

    Nothing is written to find out.

    :param allow_group: as for ``overlay.untrusted.problem_of_owner``.
    """
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    remedy = "set OVERLAY_CACHE to a folder of your own"
    why = None
    if not place.is_dir():
        why = f"{place} is not a folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        why = f"{place} cannot be written"
    elif os.stat(place).st_dev in _of_the_kernel():
        why = f"{place} shows what the kernel knows, and keeps no files"  # though root may write
    elif (room := os.statvfs(place)).f_blocks and not room.f_bavail:
        why = f"no space is left at {place}"
    if why is not None:
        return f"the cache {folder} cannot be used: {why}; {remedy}"
    if place == folder:
        problem = problem_of_owner(folder, allow_group=allow_group)
        if problem is not None:
            return f"the cache cannot be used: {problem}; {remedy}"
    return None


def _of_the_kernel() -> set[int]:
    return {os.stat(place).st_dev for place in ("/proc", "/sys") if os.path.ismount(place)}
