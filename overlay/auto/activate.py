"""Decide what becomes of each feature in this process, and do it.

Applied on disk: the ledger's hashes are verified, nothing else.  Otherwise the same planner as
``overlay check`` decides, and what it planned is handed to the import hook.  The plan is kept in
the store, so that a warm process reads and hashes a handful of files and parses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import overlay
from overlay.auto import hook, store
from overlay.auto.switches import Switches
from overlay.errors import OverlayError

if TYPE_CHECKING:
    from overlay.model import Feature, Plan
    from overlay.targets.target import Target
    from overlay.transaction.ledger import Ledger


class RequiredMissing(OverlayError, RuntimeError):
    """A required feature cannot run in this process; it must not start."""


@dataclass(frozen=True)
class FeatureStanding:
    """What became of one feature in this process.

    :ivar state: its state before this process did anything; :ivar active: whether its code runs.
    """

    id: str
    digest: str
    state: str
    active: bool
    why: str | None = None


@dataclass(frozen=True)
class Activation:
    """What this process runs.

    :ivar way: ``disk``, ``memory``, or ``none`` where no feature is active.
    :ivar scopes: module name -> scopes whose code the plan changes.
    """

    way: str
    vllm: str
    root: str
    features: tuple[FeatureStanding, ...]
    digest: str
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One phrase for logs and tables."""
        active = [feature.id for feature in self.features if feature.active]
        return f"{', '.join(active)} ({self.way})" if active else "unpatched"


def digest(features: Iterable[FeatureStanding], switches: Switches) -> str:
    """Over what runs and every switch; equal wherever the same code runs, by whichever way."""
    active = sorted((f.id, f.digest) for f in features if f.active)
    settings = {name: value for name, value in switches.all.items() if name != "OVERLAY"}
    return hashlib.sha256(json.dumps([active, settings], sort_keys=True).encode()).hexdigest()


def folders_hash(folders: Iterable[Path]) -> str:
    """A sha256 over every file of the patches folders; changes whenever a plan could change."""
    total = hashlib.sha256()
    for folder in folders:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            if "__pycache__" in file.parts:
                continue
            data = file.read_bytes()
            name = file.relative_to(folder).as_posix()
            total.update(f"{name}\0{len(data)}\0".encode() + data)
        total.update(b"\0folder\0")
    return total.hexdigest()


def activate(target: Target, switches: Switches, after_exec: hook.AfterExec) -> Activation:
    """Bring about what ``switches`` ask for in this process.

    :param target: the vLLM that is running; it has a root.
    :raises RequiredMissing: if a required feature cannot run here.
    :raises HookError: if a module to be patched was imported already.
    :raises OverlayError: if the ledger or a patches folder is unusable.
    """
    from overlay.transaction import ledger as ledgers

    assert target.root is not None  # an importable vLLM lies in a folder
    standing = ledgers.load(target.root)
    if standing is not None and standing.applied:
        found = _from_disk(target, standing, switches)
    elif switches.mode == "disk":
        found = _finish(target, switches, "none", ())
    else:
        found = _in_memory(target, switches, after_exec)
    _refuse_missing(found, switches)
    return found


def _from_disk(target: Target, ledger: Ledger, switches: Switches) -> Activation:
    from overlay.standing import Condition, conditions, void

    found = conditions(ledger, target.read)
    release = None if target.release is None else str(target.release)
    gone = void(ledger, found, release)
    wrong = sorted(path for path, one in found.items() if one is not Condition.OURS)
    why = None
    if gone is not None:
        why = f"the ledger no longer holds: {gone}; run overlay status"
    elif wrong:
        why = f"edited after overlay apply: {', '.join(wrong)}; run overlay status"
    features = tuple(
        FeatureStanding(one.result.feature, one.digest, "applied", why is None, why)
        for one in ledger.applied
    )
    return _finish(target, switches, "disk" if why is None else "none", features)


def _in_memory(target: Target, switches: Switches, after_exec: hook.AfterExec) -> Activation:
    from overlay.features import shipped_folder

    folders = [shipped_folder(), *switches.patches]
    entry, warnings = _entry(target, switches, folders)
    features = tuple(FeatureStanding(**row) for row in _rows(entry.facts, "features"))
    if entry.modules:
        assert target.root is not None
        hook.install(hook.PatchFinder(target.root, entry.modules, after_exec))
    scopes = {str(row["module"]): tuple(row["scopes"]) for row in _rows(entry.facts, "scopes")}
    way = "memory" if entry.modules else "none"
    planned = tuple(str(one) for one in _rows(entry.facts, "warnings"))
    return _finish(target, switches, way, features, scopes, (*warnings, *planned))


def _rows(facts: Mapping[str, object], name: str) -> list[Any]:
    rows = facts.get(name)
    if not isinstance(rows, list):
        raise store.StoreError(f"the cache entry lacks {name}; remove it")
    return rows


def _finish(
    target: Target,
    switches: Switches,
    way: str,
    features: tuple[FeatureStanding, ...],
    scopes: Mapping[str, tuple[str, ...]] | None = None,
    warnings: tuple[str, ...] = (),
) -> Activation:
    return Activation(
        way,
        target.vllm or "unknown",
        str(target.root),
        features,
        digest(features, switches),
        scopes or {},
        warnings,
    )


def _refuse_missing(found: Activation, switches: Switches) -> None:
    harmless = ("upstreamed", "inapplicable")
    known = {feature.id for feature in found.features}
    missing = [
        f"{feature.id} is {feature.state}: {feature.why or 'not active'}"
        for feature in found.features
        if switches.requires(feature.id) and not feature.active and feature.state not in harmless
    ]
    missing += [
        f"{name} is not active: no such feature is applied or known here"
        for name in sorted(switches.required - known - {"all"})
    ]
    idle = not any(feature.active for feature in found.features)
    done = bool(found.features) and all(f.state in harmless for f in found.features)
    if "all" in switches.required and idle and not done:
        missing.append("no feature is active in this process")
    if missing:
        raise RequiredMissing(
            "vllm-overlay: OVERLAY_REQUIRED names what cannot run in this process:\n  "
            + "\n  ".join(missing)
            + "\nRun `overlay check` for the whole report, or change OVERLAY_REQUIRED."
        )


def _entry(
    target: Target, switches: Switches, folders: list[Path]
) -> tuple[store.Entry, tuple[str, ...]]:
    """The verified store entry for this vLLM, made where there is none."""
    key = store.entry_key(
        overlay.__version__,
        str(target.root),
        target.vllm or "",
        str(switches.untested),
        folders_hash(folders),
    )
    warnings: list[str] = []
    for place in _places():
        cache = store.Store(place)
        try:
            entry = cache.load(key)
            if entry is not None and _fits(entry, target):
                return entry, tuple(warnings)
            if entry is not None:  # the same place now holds other files
                cache.discard(key)
        except store.StoreError as error:
            warnings.append(f"{error}; made again elsewhere or anew")
            with contextlib.suppress(OSError):
                cache.discard(key)
        try:
            texts, facts = _planned(target, switches, folders)
            return cache.save(key, texts, facts), tuple(warnings)
        except (OSError, store.StoreError) as error:
            warnings.append(f"the cache at {place} cannot be used ({error})")
    raise store.StoreError("no place for patched modules can be written: " + "; ".join(warnings))


def _places() -> Iterable[Path]:
    """Where the store may lie: the user's cache, else a private temporary folder."""
    from overlay.targets.cache import cache_folder

    with contextlib.suppress(RuntimeError):  # no home folder
        yield cache_folder() / "modules"
    yield Path(tempfile.mkdtemp(prefix=f"vllm-overlay-{os.geteuid()}-")) / "modules"


def _fits(entry: store.Entry, target: Target) -> bool:
    sources = entry.facts.get("pristine")
    if not isinstance(sources, dict):
        return False
    for path, expected in sources.items():
        data = target.read(path)
        if (None if data is None else store.sha256(data)) != expected:
            return False
    return True


def _planned(
    target: Target, switches: Switches, folders: list[Path]
) -> tuple[dict[str, tuple[bytes, str | None]], dict[str, object]]:
    """What ``store.Store.save`` takes: the patched texts, and the facts of the plan."""
    from overlay.features import load
    from overlay.planning import plan

    features = load(folders)
    first = plan(features, target, target.release, target.record)
    chosen = _applicable(features, first, switches)
    # What needs attention is left out as a whole; the rest is planned without it.
    final = plan(chosen, target, target.release, target.record)
    by_id = {result.feature: result for result in first.features}
    standings = []
    for feature in features:
        result = by_id[feature.id]
        active = feature in chosen
        why = result.why or next((f.why for f in result.files if f.why), None)
        if why is None:
            why = next((h.why for f in result.files for h in f.hunks if h.why), None)
        if result.untested and not active:
            why = "this release is untested; OVERLAY_UNTESTED=1 allows it"
        standings.append(
            FeatureStanding(feature.id, feature.digest, result.state.value, active, why)
        )
    texts = {
        change.path: (change.after, None if change.before is None else store.sha256(change.before))
        for change in final.changes
        if change.after is not None
    }
    facts: dict[str, object] = {
        "features": [vars(standing) for standing in standings],
        "pristine": {path: pristine for path, (_, pristine) in texts.items()}
        | _read(target, first),
        "scopes": _scopes(final),
        "warnings": list(final.warnings),
    }
    return texts, facts


def _applicable(
    features: Iterable[Feature], first: Plan, switches: Switches
) -> tuple[Feature, ...]:
    wanted = {
        result.feature
        for result in first.features
        if result.state.value == "pristine" and (switches.untested or not result.untested)
    }
    return tuple(feature for feature in features if feature.id in wanted)


def _read(target: Target, plan: Plan) -> dict[str, str | None]:
    """The hash of every file that the plan looked at, so that a change of any is noticed."""
    found: dict[str, str | None] = {}
    for feature in plan.features:
        for file in feature.files:
            data = target.read(file.path)
            found[file.path] = None if data is None else store.sha256(data)
    return found


def _scopes(plan: Plan) -> list[dict[str, object]]:
    scopes: dict[str, set[str]] = {}
    for feature in plan.features:
        for file in feature.files:
            scopes.setdefault(hook.module_name(file.path), set()).update(
                one.scope for one in file.hunks
            )
    return [{"module": name, "scopes": sorted(found)} for name, found in sorted(scopes.items())]
