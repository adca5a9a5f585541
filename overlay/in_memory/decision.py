"""Decide what becomes of each feature in this process, and do it: ``decide`` reads top-down.

Applied on disk: the ledger's hashes are verified, nothing else.  Only where a feature is left over
of which the ledger knows nothing, or another form, the same planner as ``overlay check`` decides,
and what it planned is handed to the import hook."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import overlay
from overlay._features.sources import source_of
from overlay.errors import OverlayError, TargetError, TransactionError, UsageError
from overlay.in_memory.activation import HARMLESS, NOT_ASKED, Activation, FeatureDecision, digest
from overlay.in_memory.packages import running_beside, running_vllm
from overlay.in_memory.patch_folders import (
    feature_paths,
    package_in,
    patches_folders,
    required_features,
)
from overlay.results import State, Way
from overlay.settings import Mode

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from overlay.in_memory.import_hook import Observer
    from overlay.in_memory.preparation import Planned, PreparedModules
    from overlay.on_disk.ledger import Ledger
    from overlay.package import Package
    from overlay.settings import Switches
    from overlay.targets.target import Target


class RequiredMissing(OverlayError, RuntimeError):
    """A required feature cannot run in this process; it must not start."""


def decide(switches: Switches, observer: Observer) -> Activation:
    """Bring about what ``switches`` ask for in this process.

    The variables that features declare are checked first, before a weight is read.  A feature that
    something prevents is left out as a whole, with the reason.

    :param observer: hears what the import hook executes, and what another hook loads in its place.
    :raises RequiredMissing: if a required feature cannot run here.
    :raises UsageError: for values that no feature accepts, and if a patches folder is not there.
    """
    warnings = _checked(switches)
    vllm: Target | None = None
    try:
        vllm = running_vllm()
        targets = (vllm, *running_beside(switches))
    except TargetError as error:
        # In an archive, frozen, or nothing that could be patched: half of what was asked for is
        # not brought about.
        activation = _impossible(str(error), switches, vllm)
    else:
        activation = _activated(targets, switches, observer)
    return activation._replace(warnings=(*warnings, *activation.warnings))


def _checked(switches: Switches) -> tuple[str, ...]:
    """The warnings about the variables that are set.

    :raises UsageError: for values that no feature accepts.
    """
    if not switches.further:
        return switches.warnings
    from overlay._features.switches import check_values, declarations

    checked = check_values(switches.all, declarations(patches_folders(switches)))
    if checked.wrong:
        raise UsageError("vllm-overlay: " + "\n".join(checked.wrong))
    return (*switches.warnings, *checked.unknown, *checked.former)


def _activated(targets: Sequence[Target], switches: Switches, observer: Observer) -> Activation:
    """Bring it about in every package, or in none.

    :param targets: the vLLM that is running, then the other packages that features are for; each
        has a root.
    """
    required_ids = _required_ids(switches)
    try:
        parts = [_activated_in(target, switches, required_ids, observer) for target in targets]
        activation = _together(parts, targets, switches)
    except UsageError:
        raise
    except OverlayError as error:
        # What one package has already would be half of what was asked for.
        hook = sys.modules.get("overlay.in_memory.import_hook")
        if hook is not None:
            hook.uninstall(sys.meta_path)
        activation = _impossible(str(error), switches, targets[0])
    _refuse_missing(activation, required_ids)
    active = {feature.id for feature in activation.features if feature.active}
    return activation._replace(
        required=bool(active and ("all" in required_ids or active & required_ids))
    )


def _together(
    parts: Sequence[Activation], targets: Sequence[Target], switches: Switches
) -> Activation:
    """What a process runs, from what it runs of each package; one digest over all of it."""
    first = parts[0]
    if len(parts) == 1:
        return first
    features = tuple(feature for part in parts for feature in part.features)
    return first._replace(
        way=functools.reduce(Way.__or__, (part.way for part in parts)),
        features=features,
        digest=digest(features, switches.all),
        scopes={name: scopes for part in parts for name, scopes in part.scopes.items()},
        modules=tuple(sorted(name for part in parts for name in part.modules)),
        warnings=tuple(dict.fromkeys(text for part in parts for text in part.warnings)),
        packages=tuple(
            (target.package.title, target.vllm or "unknown")
            for part, target in zip(parts[1:], targets[1:], strict=True)
            if any(feature.active for feature in part.features)
        ),
    )


def _impossible(why: str, switches: Switches, target: Target | None = None) -> Activation:
    """What a process runs in which nothing can be patched or verified; patches on disk may run.

    :raises RequiredMissing: if a required feature cannot run for that reason.
    """
    activation = Activation(
        Way.NONE,
        (target and target.vllm) or "unknown",
        str(target.root) if target else "",
        (),
        digest((), switches.all),
        warnings=(f"nothing is patched in memory, and nothing on disk verified: {why}",),
        impossible=why,
    )
    if required_ids := _required_ids(switches):
        raise RequiredMissing(_refusal([f"{', '.join(sorted(required_ids))}: {why}"]))
    return activation


def _activated_in(
    target: Target,
    switches: Switches,
    required_ids: frozenset[str],
    observer: Observer,
) -> Activation:
    """Bring it about in one package: what is on disk is verified, the rest planned if need be."""
    assert target.root is not None  # an importable vLLM lies in a folder
    activation = Activation(Way.NONE, target.vllm or "unknown", str(target.root), (), "")
    ledger = _ledger(target.root, target.package)
    features = [] if ledger is None else on_disk(target, ledger)
    if any(not feature.active for feature in features):
        # A plan on top of files that somebody edited proves nothing.
        return activation._replace(features=tuple(features), digest=digest(features, switches.all))
    if features:
        activation = activation._replace(way=Way.DISK, features=tuple(features))
    if switches.mode is Mode.AUTO:
        rest = None
        if ledger is not None and features:
            folders = patches_folders(switches)
            rest = settled_without_plan(ledger, target.public, switches, folders)
        if rest is None:
            activation, rest = _in_memory(target, switches, required_ids, observer, activation)
        features += rest
    elif required_ids - {feature.id for feature in features}:
        features += _not_on_disk(target, switches, {feature.id for feature in features})
    return activation._replace(features=tuple(features), digest=digest(features, switches.all))


def _ledger(root: Path, package: Package) -> Ledger | None:
    """The ledger; what reads one is imported only where the overlay has left something."""
    if not (root / package.state_folder).exists():
        return None
    from overlay.on_disk import ledger as ledgers

    if (root / package.journal_path).exists():
        raise TransactionError(
            f"an apply or revert in {root} is running or was interrupted; run `overlay apply` or "
            "`overlay revert`, either of which finishes or undoes it first, and start again"
        )
    return ledgers.load(root, package)


def on_disk(target: Target, ledger: Ledger) -> list[FeatureDecision]:
    """Judge the features on disk; none where vLLM was installed again: then nothing is applied.

    All of them are active, or none is: where a file is not as the overlay left it.
    """
    if not ledger.applied:
        return []
    from overlay.on_disk.disk_state import Condition, conditions, void

    states = conditions(ledger, target.read)
    if void(ledger, states, target.public) is not None and all(
        state in (Condition.PRISTINE, Condition.GONE) for state in states.values()
    ):
        return []
    wrong = sorted(path for path, state in states.items() if state is not Condition.OURS)
    why = None
    if wrong:
        why = f"not as overlay apply left it: {', '.join(wrong)}; run `overlay status`"
    return [
        FeatureDecision(
            each.result.feature,
            each.digest,
            State.APPLIED,
            why is None,
            why,
            places=each.result.places,
        )
        for each in ledger.applied
    ]


def settled_without_plan(
    ledger: Ledger, release: str | None, switches: Switches, folders: Sequence[Path]
) -> list[FeatureDecision] | None:
    """The features that are not on disk and need not be; ``None`` where only a plan can tell.

    :param ledger: its files are as the overlay wrote them; :param release: what is installed.
    :param folders: the patches folders.
    """
    if ledger.overlay != overlay.__version__ or ledger.release != release:
        return None
    entries = {each.result.feature: each for each in ledger.features}
    decisions: list[FeatureDecision] = []
    other_package_ids: set[str] = set()
    for name, path, folder in feature_paths(folders):
        if name not in entries and package_in(path) != ledger.package:
            other_package_ids.add(name)  # a feature for another package has a ledger of its own
            continue
        entry = entries.pop(name, None)  # one that is found twice is an error, which a plan reports
        if entry is None or entry.source != source_of(path, folder):
            return None
        result = entry.result
        if result.state is State.APPLIED:
            continue
        # By its files a feature can change while the release stays.
        if result.state not in HARMLESS or result.files:
            return None
        allowed = switches.allows(name)
        why = (str(result.reason) if result.reason else None) if allowed else NOT_ASKED
        decisions.append(FeatureDecision(name, entry.digest, result.state, False, why, allowed))
    ids = {entry.result.feature for entry in ledger.features} - set(entries) | other_package_ids
    if (switches.features or frozenset()) - ids:
        return None  # OVERLAY_FEATURES names an unknown one: an error, too
    return decisions


def _in_memory(
    target: Target,
    switches: Switches,
    required_ids: frozenset[str],
    observer: Observer,
    activation: Activation,
) -> tuple[Activation, list[FeatureDecision]]:
    """Hook every feature that is not on disk and can be patched.

    :param activation: what the process runs from disk.
    :returns: what the process runs then, and the states of the features that are not on disk.
    """
    hook = _hook()
    from overlay.in_memory.preparation import Plans, prepare

    on_disk = {feature.id: feature.digest for feature in activation.features}
    plans = Plans(target, switches)
    prepared = prepare(plans, on_disk)
    late = {
        feature.id: hook.imported(feature.modules)
        for feature in prepared.features
        if feature.chosen
    }
    late = {name: modules for name, modules in late.items() if modules}
    if late:
        # Each feature goes in as a whole or not at all, so what came too late is planned without.
        prepared = prepare(plans, on_disk.keys() | late.keys())
    features = [
        _hooked(feature, late.get(feature.id))
        for feature in prepared.features
        if feature.id not in on_disk
    ]
    if prepared.entry.modules:
        activation = activation._replace(
            way=activation.way | Way.MEMORY,
            scopes=prepared.scopes,
            modules=_install(target, prepared, required_ids, observer),
        )
    other_forms = tuple(
        _other_form(feature)
        for feature in prepared.features
        if on_disk.get(feature.id, feature.digest) != feature.digest
    )
    return activation._replace(warnings=(*prepared.warnings, *other_forms)), features


def _hook() -> ModuleType:
    """The import hook's module, which a process needs where something is patched in memory."""
    from overlay.in_memory import import_hook

    return import_hook


def _install(
    target: Target, prepared: PreparedModules, required_ids: frozenset[str], observer: Observer
) -> tuple[str, ...]:
    """Install the import hook for what was planned.

    :returns: the modules that it serves, sorted.
    """
    hook = _hook()

    assert target.root is not None  # an importable package lies in a folder
    required = {
        module
        for feature in prepared.features
        if feature.chosen and (feature.id in required_ids or "all" in required_ids)
        for module in feature.modules
    }
    finder = hook.PatchFinder(target.root, prepared.entry.modules, observer, required)
    hook.install(finder)
    return tuple(sorted(finder.modules))


def _hooked(feature: Planned, late: Mapping[str, str] | None) -> FeatureDecision:
    """The state of a feature that is not on disk, once the hook is installed.

    :param late: its modules that were imported before that, with who imported each.
    """
    why = feature.why
    if late:
        why = f"{_late(late)}. Apply on disk instead (`overlay apply`)"
    return FeatureDecision(
        feature.id,
        feature.digest,
        feature.state,
        feature.chosen,
        why,
        feature.asked,
        feature.places,
    )


def _other_form(feature: Planned) -> str:
    """The warning about a feature that is on disk, but not as its patches folder has it."""
    if not feature.digest:
        return f"{feature.id} runs as it was applied on disk; {feature.why}"
    return (
        f"{feature.id} was applied on disk in another form than the present one, and runs in that; "
        "`overlay apply` writes the present one"
    )


def _not_on_disk(target: Target, switches: Switches, on_disk: set[str]) -> list[FeatureDecision]:
    """The states of the features that ``OVERLAY=disk`` does not find applied; none is hooked."""
    from overlay.in_memory.preparation import Plans, prepare

    why = "it is not applied on disk, and OVERLAY=disk allows no other way"
    return [
        FeatureDecision(feature.id, feature.digest, feature.state, False, feature.why or why)
        for feature in prepare(Plans(target, switches), on_disk).features
        if feature.id not in on_disk
    ]


def _required_ids(switches: Switches) -> frozenset[str]:
    """The features without which vLLM must not start, by the environment or by themselves."""
    return switches.present | required_features(switches)


def _late(imported: Mapping[str, str]) -> str:
    names = "; ".join(f"{name} (imported by {who})" for name, who in sorted(imported.items()))
    return f"already imported, so it cannot be patched in memory: {names}"


def _refuse_missing(activation: Activation, required_ids: frozenset[str]) -> None:
    missing = [
        f"{feature.id} is {feature.state.value}: {feature.why or 'not active'}".replace(
            "\n", "\n    "
        )
        for feature in activation.features
        if (feature.id in required_ids or ("all" in required_ids and feature.allowed))
        and not feature.active
        and feature.state not in HARMLESS
    ]
    ids = {feature.id for feature in activation.features}
    missing += [
        f"{name} is not active: no such feature is applied or known here"
        for name in sorted(required_ids - ids - {"all"})
    ]
    idle = not any(feature.active for feature in activation.features)
    harmless = bool(activation.features) and all(f.state in HARMLESS for f in activation.features)
    if "all" in required_ids and idle and not harmless and not missing:
        missing.append("no feature is active in this process")
    if missing:
        _hook().uninstall(sys.meta_path)
        raise RequiredMissing(_refusal(missing))


def _refusal(missing: Iterable[str]) -> str:
    return (
        "vllm-overlay: what is required (OVERLAY_REQUIRED, or `required` in a feature.toml) cannot "
        "run in this process:\n  "
        + "\n  ".join(missing)
        + "\nRun `overlay check` for the whole report, or remove the requirement."
    )
