"""``OVERLAY=off`` where patched code is on disk: the features' own switches are turned off."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from overlay.errors import OverlayError
from overlay.in_memory.activation import Activation
from overlay.in_memory.inventory import further_packages, patches_folders, root_of
from overlay.package import VLLM
from overlay.results import Way
from overlay.settings import Switches


def activation(switches: Switches, environment: MutableMapping[str, str]) -> Activation:
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
    applied: tuple[str, ...] = ()
    for package, place in places.items():
        if place is None or not (place / package.state_folder).exists():
            continue
        from overlay.on_disk import ledger as ledgers

        ledger = ledgers.load(place, package)
        applied += () if ledger is None else tuple(e.result.feature for e in ledger.applied)
    return applied


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
