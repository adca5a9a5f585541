"""Decide what becomes of each feature in this process, and do it: ``decide`` reads top-down.

Applied on disk: the ledger's hashes are verified, nothing else.  Only where a feature is left over
of which the ledger knows nothing, or another form, the same planner as ``overlay check`` decides,
and what it planned is handed to the import hook."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import overlay
from overlay._features.sources import (
    features_in,
    further_packages,
    package_in,
    patches_folders,
    required_features,
    source_of,
)
from overlay.errors import Absent, OverlayError, TransactionError, UsageError
from overlay.in_memory import HARMLESS, NOT_ASKED, Activation, FeatureDecision
from overlay.package import VLLM
from overlay.results import State, Way
from overlay.settings import Mode, Switches

if TYPE_CHECKING:
    from overlay.in_memory.import_hook import Observer
    from overlay.in_memory.preparation import Plans, PreparedModules
    from overlay.on_disk.ledger import Ledger
    from overlay.package import Package
    from overlay.targets import Target


class RequiredMissing(OverlayError, RuntimeError):
    """A required feature cannot run in this process; it must not start."""


def decide(
    switches: Switches, observer: Observer, environment: MutableMapping[str, str]
) -> Activation:
    """Bring about what ``switches`` ask for in this process, in every package or in none.

    The variables that features declare are checked first, before a weight is read.  A feature that
    something prevents is left out as a whole, with the reason.

    :param observer: hears what the import hook executes, and what another hook loads in its place.
    :param environment: where ``OVERLAY=off`` turns off the features that are on disk.
    :raises RequiredMissing: if a required feature cannot run here.
    :raises UsageError: for values that no feature accepts, and if a patches folder is not there.
    """
    if switches.mode is Mode.OFF:
        return _turned_off(switches, environment)
    warnings = _checked(switches)
    required_ids = required_features(switches)
    packages = further_packages(patches_folders(switches))
    vllm: Target | None = None
    try:
        vllm = running_target(VLLM)
        targets = (vllm, *_beside(packages))
        parts = [_activated_in(target, switches, required_ids, observer) for target in targets]
        activation = _together(parts, targets)
    except UsageError:
        raise
    except OverlayError as error:
        # In an archive, frozen, or nothing that could be patched; what one package has already
        # would be half of what was asked for.
        _unhook()
        activation = _impossible(str(error), vllm)
    _refuse_missing(activation, required_ids)
    active_ids = {feature.id for feature in activation.features if feature.active}
    required = active_ids if "all" in required_ids else active_ids & required_ids
    return activation._replace(
        digest=digest(activation.features, switches.all),
        required=bool(required),
        warnings=(*warnings, *activation.warnings),
    )


def digest(features: Iterable[FeatureDecision], variables: Mapping[str, str]) -> str:
    """Hash what runs and every switch; equal wherever the same code runs, by whichever way."""
    active = sorted((each.id, each.digest) for each in features if each.active)
    settings = {name: value for name, value in variables.items() if name != "OVERLAY"}
    return hashlib.sha256(json.dumps([active, settings], sort_keys=True).encode()).hexdigest()


def _checked(switches: Switches) -> tuple[str, ...]:
    """The warnings about the variables that are set.

    :raises UsageError: for values that no feature accepts.
    """
    if not switches.further:
        return switches.warnings
    from overlay._features.switches import check_values, declarations

    declared = declarations(patches_folders(switches))
    checked = check_values(switches.all, declared)
    if checked.wrong:
        raise UsageError("vllm-overlay: " + "\n".join(checked.wrong))
    return (*switches.warnings, *checked.unknown, *checked.former)


def _beside(packages: Iterable[Package]) -> Iterator[Target]:
    """Those of the packages beside vLLM that are there.

    :raises TargetError: if one is there and cannot be patched.
    """
    for package in packages:
        with contextlib.suppress(Absent):
            yield running_target(package)


def _together(parts: Sequence[Activation], targets: Sequence[Target]) -> Activation:
    """What a process runs, from what it runs of each package.

    :param targets: vLLM, then the other packages; what runs of each is in ``parts``.
    """
    return parts[0]._replace(
        way=functools.reduce(Way.__or__, (part.way for part in parts)),
        features=tuple(feature for part in parts for feature in part.features),
        scopes={name: scopes for part in parts for name, scopes in part.scopes.items()},
        modules=tuple(sorted(name for part in parts for name in part.modules)),
        warnings=tuple(dict.fromkeys(text for part in parts for text in part.warnings)),
        packages=tuple(
            (target.package.title, target.vllm or "unknown")
            for part, target in zip(parts[1:], targets[1:], strict=True)
            if any(feature.active for feature in part.features)
        ),
    )


def _impossible(why: str, vllm: Target | None) -> Activation:
    """What a process runs in which nothing can be patched or verified; patches on disk may run."""
    return Activation(
        Way.NONE,
        (vllm and vllm.vllm) or "unknown",
        str(vllm.root) if vllm else "",
        (),
        warnings=(f"nothing is patched in memory, and nothing on disk verified: {why}",),
        impossible=why,
    )


def _activated_in(
    target: Target,
    switches: Switches,
    required_ids: frozenset[str],
    observer: Observer,
) -> Activation:
    """Bring it about in one package: what is on disk is verified, the rest planned if need be."""
    assert target.root is not None  # an importable package lies in a folder
    _refuse_interrupted(target.root, target.package)
    ledger = _ledger(target.root, target.package)
    features = [] if ledger is None else on_disk(target, ledger)
    activation = Activation(Way.NONE, target.vllm or "unknown", str(target.root), tuple(features))
    if any(not feature.active for feature in features):
        return activation  # a plan on top of files that somebody edited proves nothing
    if features:
        activation = activation._replace(way=Way.DISK)
    rest: list[FeatureDecision] | None = None
    if switches.mode is not Mode.AUTO:
        rest = None if required_ids - {feature.id for feature in features} else []
    elif ledger is not None and features:
        folders = patches_folders(switches)
        rest = settled_without_plan(ledger, target.public, switches, folders)
    if rest is not None:
        return activation._replace(features=(*features, *rest))
    from overlay.in_memory.preparation import Plans, prepare

    plans = Plans(target, switches)
    prepared = prepare(plans, (feature.id for feature in features))
    if switches.mode is not Mode.AUTO:
        return activation._replace(features=(*features, *_not_on_disk(prepared, features)))
    return _in_memory(plans, prepared, required_ids, observer, activation)


def _ledger(root: Path, package: Package) -> Ledger | None:
    """The ledger; what reads one is imported only where the overlay has left something."""
    if not (root / package.state_folder).exists():
        return None
    from overlay.on_disk import ledger as ledgers

    return ledgers.load(root, package)


def _refuse_interrupted(root: Path, package: Package) -> None:
    if (root / package.journal_path).exists():
        raise TransactionError(
            f"an apply or revert in {root} is running or was interrupted; run `overlay apply` or "
            "`overlay revert`, either of which finishes or undoes it first, and start again"
        )


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
    for name, path, folder in features_in(folders):
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
    plans: Plans,
    prepared: PreparedModules,
    required_ids: frozenset[str],
    observer: Observer,
    activation: Activation,
) -> Activation:
    """Hook every feature that is not on disk and can be patched.

    :param activation: what the process runs from disk.
    """
    from overlay.in_memory import import_hook
    from overlay.in_memory.preparation import prepare

    on_disk = {feature.id: feature.digest for feature in activation.features}
    imported = {
        feature.id: import_hook.imported(feature.modules)
        for feature in prepared.features
        if feature.active
    }
    late = {name: _late(modules) for name, modules in imported.items() if modules}
    if late:
        # Each feature goes in as a whole or not at all, so what came too late is planned without.
        prepared = prepare(plans, on_disk.keys() | late.keys())
    if prepared.entry.modules:
        root = plans.target.root
        assert root is not None  # an importable package lies in a folder
        required = {
            module
            for feature in prepared.features
            if feature.active and (feature.id in required_ids or "all" in required_ids)
            for module in feature.modules
        }
        finder = import_hook.PatchFinder(root, prepared.entry.modules, observer, required)
        import_hook.install(finder)
        activation = activation._replace(
            way=activation.way | Way.MEMORY,
            scopes=prepared.scopes,
            modules=tuple(sorted(finder.modules)),
        )
    rest = (
        feature._replace(why=late.get(feature.id, feature.why))
        for feature in prepared.features
        if feature.id not in on_disk
    )
    other_forms = (
        _other_form(feature)
        for feature in prepared.features
        if on_disk.get(feature.id, feature.digest) != feature.digest
    )
    return activation._replace(
        features=(*activation.features, *rest), warnings=(*prepared.warnings, *other_forms)
    )


def _unhook() -> None:
    """Take out what the import hook would serve, where it was needed at all."""
    hook = sys.modules.get("overlay.in_memory.import_hook")
    if hook is not None:
        hook.uninstall(sys.meta_path)


def _other_form(feature: FeatureDecision) -> str:
    """The warning about a feature that is on disk, but not as its patches folder has it."""
    if not feature.digest:
        return f"{feature.id} runs as it was applied on disk; {feature.why}"
    return (
        f"{feature.id} was applied on disk in another form than the present one, and runs in that; "
        "`overlay apply` writes the present one"
    )


def _not_on_disk(
    prepared: PreparedModules, on_disk: Iterable[FeatureDecision]
) -> list[FeatureDecision]:
    """The states of the features that ``OVERLAY=disk`` does not find applied; none is hooked."""
    ids = {feature.id for feature in on_disk}
    why = "it is not applied on disk, and OVERLAY=disk allows no other way"
    return [
        FeatureDecision(feature.id, feature.digest, feature.state, False, feature.why or why)
        for feature in prepared.features
        if feature.id not in ids
    ]


def _late(imported: Mapping[str, str]) -> str:
    names = "; ".join(f"{name} (imported by {who})" for name, who in sorted(imported.items()))
    return (
        f"already imported, so it cannot be patched in memory: {names}. Apply on disk instead "
        "(`overlay apply`)"
    )


def _refuse_missing(activation: Activation, required_ids: frozenset[str]) -> None:
    """Refuse to start without what is required.

    :raises RequiredMissing: naming each feature that cannot run, and why.
    """
    if activation.impossible is not None and required_ids:
        names = ", ".join(sorted(required_ids))
        raise RequiredMissing(_refusal([f"{names}: {activation.impossible}"]))
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
        _unhook()
        raise RequiredMissing(_refusal(missing))


def _refusal(missing: Iterable[str]) -> str:
    return (
        "vllm-overlay: what is required (OVERLAY_REQUIRED, or `required` in a feature.toml) cannot "
        "run in this process:\n  "
        + "\n  ".join(missing)
        + "\nRun `overlay check` for the whole report, or remove the requirement."
    )


def _turned_off(switches: Switches, environment: MutableMapping[str, str]) -> Activation:
    """What ``OVERLAY=off`` comes to in the vLLM of this process, and the packages beside it.

    The plugin cannot take patched code off the disk while vLLM starts, but each feature may declare
    a switch that turns its effect off; these are set in ``environment`` before vLLM reads them.
    """
    vllm = sys.modules.get("vllm")
    off = Activation(Way.OFF, str(getattr(vllm, "__version__", "unknown")), "", ())
    file = getattr(vllm, "__file__", None)
    if not isinstance(file, str):
        return off
    root = Path(os.path.dirname(os.path.dirname(os.path.abspath(file))))
    try:
        folders = patches_folders(switches)
        applied = _applied(root, folders)
    except OverlayError as error:
        text = f"OVERLAY=off, but patched code may be on disk ({error}); run `overlay status`"
        return off._replace(warnings=(text,), off_summary="off (OVERLAY=off)")
    if not applied:
        return off
    set_off, without = _turn_off(applied, folders, environment)
    text = f"OVERLAY=off, but patched code is on disk: {', '.join(applied)}"
    if set_off:
        text += f". Its switches are turned off for this process: {', '.join(set_off)}"
    if without:
        text += f". No switch turns off {', '.join(without)}: it stays in effect"
    summary = f"off (OVERLAY=off), with patched code on disk ({', '.join(applied)})"
    return off._replace(
        root=str(root),
        warnings=(f"{text}. `overlay revert` takes the code away",),
        off_summary=summary,
    )


def _applied(root: Path, folders: Sequence[Path]) -> tuple[str, ...]:
    """The ids of the features that are applied to vLLM and to the other packages.

    :raises OverlayError: if a ledger cannot be read.
    """
    places = {VLLM: root, **{package: root_of(package) for package in further_packages(folders)}}
    ledgers = [_ledger(place, package) for package, place in places.items() if place is not None]
    return tuple(e.result.feature for ledger in ledgers if ledger for e in ledger.applied)


def _turn_off(
    applied: tuple[str, ...], folders: Sequence[Path], environment: MutableMapping[str, str]
) -> tuple[list[str], list[str]]:
    """Set the switches of features to off.

    :returns: each switch that was set, as ``NAME=off``; and the features that have none.
    """
    from overlay._features.switches import declarations

    declared = {each.id: each for each in declarations(folders)}
    set_off, without = [], []
    for feature in applied:
        switches = declared[feature].switches if feature in declared else ()
        names = [(switch.name, switch.off) for switch in switches if switch.off is not None]
        for name, value in names:
            environment[name] = value
            set_off.append(f"{name}={value}")
        if not names:
            without.append(feature)
    return set_off, without


def running_target(package: Package) -> Target:
    """The package that this process imported; before it did, the one that it would import.

    :raises Absent: if there is none.
    :raises TargetError: if it is not a plain folder.
    """
    place = _imported(package.name)
    if place is None:
        from overlay.targets.environments import resolve_installed

        return resolve_installed(package)
    from overlay.targets.installations import target_at

    root = os.path.dirname(os.path.realpath(place))
    stated = getattr(sys.modules[package.name], "__version__", None)
    return target_at(place, root, package, path=sys.path, stated=stated)


def root_of(package: Package) -> Path | None:
    """The folder that holds a package, as this process imports it; nothing is imported for it."""
    place = _imported(package.name)
    if place is None:
        try:
            spec = find_spec(package.name)
        except (ImportError, ValueError, AttributeError):
            return None
        if spec is None or os.path.basename(spec.origin or "") != "__init__.py":
            return None
        place = Path(str(spec.origin)).parent
    return Path(os.path.realpath(place)).parent


def _imported(name: str) -> Path | None:
    """The folder of a package that was imported from files."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return None
    return Path(os.path.dirname(os.path.abspath(file)))
