"""Decide what becomes of each feature in this process, and do it.

Applied on disk: the ledger's hashes are verified, nothing else.  Only where a feature is left over
of which the ledger knows nothing, or another form, the same planner as ``overlay check`` decides,
and what it planned is handed to the import hook."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from overlay.errors import OverlayError, TransactionError, UsageError
from overlay.in_memory.activation import Activation
from overlay.on_disk.process_decision import (
    HARMLESS,
    FeatureDecision,
    digest,
    from_disk,
    needless,
)
from overlay.results import Way
from overlay.settings import Mode

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.in_memory.import_hook import Observer
    from overlay.in_memory.preparation import Planned, Prepared
    from overlay.on_disk.ledger import Ledger
    from overlay.package import Package
    from overlay.settings import Switches
    from overlay.targets.target import Target


class RequiredMissing(OverlayError, RuntimeError):
    """A required feature cannot run in this process; it must not start."""


def activate(targets: Sequence[Target], switches: Switches, observer: Observer) -> Activation:
    """Bring about what ``switches`` ask for in this process.

    A feature that something prevents is left out as a whole, with the reason.

    :param targets: the vLLM that is running, then the other packages that features are for; each
        has a root.
    :param observer: hears what the import hook executes, and what another hook loads in its place.
    :raises RequiredMissing: if a required feature cannot run here.
    :raises UsageError: if a patches folder is not there.
    """
    wanted = _wanted(switches)
    try:
        parts = [_activated(target, switches, wanted, observer) for target in targets]
        activation = _together(parts, targets, switches)
    except UsageError:
        raise
    except OverlayError as error:
        # What one package has already would be half of what was asked for.
        hook = sys.modules.get("overlay.in_memory.import_hook")
        if hook is not None:
            hook.uninstall(sys.meta_path)
        activation = impossible(str(error), switches, targets[0])
    _refuse_missing(activation, wanted)
    active = {feature.id for feature in activation.features if feature.active}
    return activation._replace(required=bool(active and ("all" in wanted or active & wanted)))


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
        others=tuple(
            (target.package.title, target.vllm or "unknown")
            for part, target in zip(parts[1:], targets[1:], strict=True)
            if any(feature.active for feature in part.features)
        ),
    )


def impossible(why: str, switches: Switches, target: Target | None = None) -> Activation:
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
    if wanted := _wanted(switches):
        raise RequiredMissing(_refusal([f"{', '.join(sorted(wanted))}: {why}"]))
    return activation


def _activated(
    target: Target,
    switches: Switches,
    wanted: frozenset[str],
    observer: Observer,
) -> Activation:
    assert target.root is not None  # an importable vLLM lies in a folder
    # What reads a ledger is imported only where the overlay has left something.
    kept = (target.root / target.package.state_folder).exists()
    ledger = _ledger(target.root, target.package) if kept else None
    features: list[FeatureDecision] = []
    activation = Activation(Way.NONE, target.vllm or "unknown", str(target.root), (), "")
    if ledger is not None and ledger.applied:
        on_disk, blocked = from_disk(target, ledger)
        if on_disk:
            features += on_disk
            activation = activation._replace(
                way=Way.NONE if blocked else Way.DISK, features=tuple(features)
            )
            if blocked:  # a plan on top of files that somebody edited proves nothing
                return activation._replace(
                    features=tuple(features), digest=digest(features, switches.all)
                )
    if switches.mode is Mode.AUTO:
        rest = None
        if ledger is not None and activation.way is Way.DISK:
            rest = needless(target, ledger, switches)
        if rest is None:
            activation, rest = _in_memory(target, switches, wanted, observer, activation)
        features += rest
    elif wanted - {feature.id for feature in features}:
        features += _not_on_disk(target, switches, {feature.id for feature in features})
    return activation._replace(features=tuple(features), digest=digest(features, switches.all))


def _ledger(root: Path, package: Package) -> Ledger | None:
    from overlay.on_disk import ledger as ledgers

    if (root / package.journal_path).exists():
        raise TransactionError(
            f"an apply or revert in {root} is running or was interrupted; run `overlay apply` or "
            "`overlay revert`, either of which finishes or undoes it first, and start again"
        )
    return ledgers.load(root, package)


def _in_memory(
    target: Target,
    switches: Switches,
    wanted: frozenset[str],
    observer: Observer,
    activation: Activation,
) -> tuple[Activation, list[FeatureDecision]]:
    """Hook every feature that is not on disk and can be patched.

    :param activation: what the process runs from disk.
    :returns: what the process runs then, and the states of the features that are not on disk.
    """
    from overlay.in_memory import import_hook as hook
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
        _hooked(planned, late.get(planned.id))
        for planned in prepared.features
        if planned.id not in on_disk
    ]
    if prepared.entry.modules:
        activation = activation._replace(
            way=activation.way | Way.MEMORY,
            scopes=prepared.scopes,
            modules=_install(target, prepared, wanted, observer),
        )
    others = tuple(
        _other_form(planned)
        for planned in prepared.features
        if on_disk.get(planned.id, planned.digest) != planned.digest
    )
    return activation._replace(warnings=(*prepared.warnings, *others)), features


def _install(
    target: Target, prepared: Prepared, wanted: frozenset[str], observer: Observer
) -> tuple[str, ...]:
    """Install the import hook for what was planned.

    :returns: the modules that it serves, sorted.
    """
    from overlay.in_memory import import_hook as hook

    assert target.root is not None  # an importable package lies in a folder
    required = {
        module
        for planned in prepared.features
        if planned.chosen and (planned.id in wanted or "all" in wanted)
        for module in planned.modules
    }
    finder = hook.PatchFinder(target.root, prepared.entry.modules, observer, required)
    hook.install(finder)
    return tuple(sorted(finder.modules))


def _hooked(planned: Planned, late: Mapping[str, str] | None) -> FeatureDecision:
    """The state of a feature that is not on disk, once the hook is installed.

    :param late: its modules that were imported before that, with who imported each.
    """
    why = planned.why
    if late:
        why = f"{_late(late)}. Apply on disk instead (`overlay apply`)"
    return FeatureDecision(
        planned.id, planned.digest, planned.state, planned.chosen, why, planned.asked
    )


def _other_form(planned: Planned) -> str:
    """The warning about a feature that is on disk, but not as its patches folder has it."""
    if not planned.digest:
        return f"{planned.id} runs as it was applied on disk; {planned.why}"
    return (
        f"{planned.id} was applied on disk in another form than the present one, and runs in that; "
        "`overlay apply` writes the present one"
    )


def _not_on_disk(target: Target, switches: Switches, on_disk: set[str]) -> list[FeatureDecision]:
    """The states of the features that ``OVERLAY=disk`` does not find applied; none is hooked."""
    from overlay.in_memory.preparation import Plans, prepare

    why = "it is not applied on disk, and OVERLAY=disk allows no other way"
    return [
        FeatureDecision(planned.id, planned.digest, planned.state, False, planned.why or why)
        for planned in prepare(Plans(target, switches), on_disk).features
        if planned.id not in on_disk
    ]


def _wanted(switches: Switches) -> frozenset[str]:
    """The features without which vLLM must not start, by the environment or by themselves."""
    from overlay.on_disk.patch_folders import required_features

    return switches.present | required_features(switches)


def _late(imported: Mapping[str, str]) -> str:
    names = "; ".join(f"{name} (imported by {who})" for name, who in sorted(imported.items()))
    return f"already imported, so it cannot be patched in memory: {names}"


def _refuse_missing(activation: Activation, wanted: frozenset[str]) -> None:
    missing = [
        f"{feature.id} is {feature.state.value}: {feature.why or 'not active'}".replace(
            "\n", "\n    "
        )
        for feature in activation.features
        if (feature.id in wanted or ("all" in wanted and feature.asked))
        and not feature.active
        and feature.state not in HARMLESS
    ]
    known = {feature.id for feature in activation.features}
    missing += [
        f"{name} is not active: no such feature is applied or known here"
        for name in sorted(wanted - known - {"all"})
    ]
    idle = not any(feature.active for feature in activation.features)
    done = bool(activation.features) and all(f.state in HARMLESS for f in activation.features)
    if "all" in wanted and idle and not done and not missing:
        missing.append("no feature is active in this process")
    if missing:
        from overlay.in_memory import import_hook as hook

        hook.uninstall(sys.meta_path)
        raise RequiredMissing(_refusal(missing))


def _refusal(missing: Iterable[str]) -> str:
    return (
        "vllm-overlay: what is required (OVERLAY_REQUIRED, or `required` in a feature.toml) cannot "
        "run in this process:\n  "
        + "\n  ".join(missing)
        + "\nRun `overlay check` for the whole report, or remove the requirement."
    )
