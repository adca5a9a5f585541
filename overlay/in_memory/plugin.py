"""What the plugin does in one process: activate, record, compare, and say so once."""

from __future__ import annotations

import logging
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import overlay
from overlay import settings as switches
from overlay.errors import OverlayError, TargetError, UsageError
from overlay.in_memory import log as speech
from overlay.in_memory import ranks as rank_watch
from overlay.in_memory.activation import Activation, activate, impossible
from overlay.in_memory.import_watch import HookError
from overlay.processes import records
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay.in_memory.module_cache import StoredModule
    from overlay.in_memory.ranks import RankReport
    from overlay.targets.target import Target


#: Where this process remembers which overlay it runs, whatever was imported or reloaded since.
_MARK = "_vllm_overlay"


class TwoOverlays(OverlayError, RuntimeError):
    """Another overlay is at work in this process already."""


@dataclass
class _Process:
    """The state of this process; there is one at most.

    :ivar asked: the switches it was started with.
    :ivar spoke: pid of the process that said what it runs; a fork has not.
    """

    activation: Activation
    record: records.ProcessRecord
    asked: switches.Switches
    spoke: int


_process: _Process | None = None


def start(environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Do for this process what the environment asks for; a second call does nothing.

    :raises OverlayError: if a required feature cannot run here, a switch has an unknown value, a
        patches folder is malformed, or another overlay is at work in this process.
    """
    global _process  # noqa: PLW0603  (one process has one state)
    if _process is not None:
        _speak_after_fork(_process)
        return
    if _is_ours_already():
        return
    asked = switches.read(environment)
    switches.carry_to_ray(environment)
    warnings = _checked(asked)
    found = _found(asked)
    found = found._replace(warnings=(*warnings, *found.warnings))
    _process = _Process(found, _describe(found), asked, os.getpid())
    setattr(sys, _MARK, _identity())
    if found.modules:  # patched in memory
        from overlay.in_memory import vllm_caches as caches

        if caches.concerned(found.modules):
            caches.keep_apart(found.digest, found.required)
    os.register_at_fork(after_in_child=_after_fork)
    _write(_process.record)
    if found.way != records.OFF:
        rank_watch.watch(_rank_report, found.required)
    _say(_process)


def _found(asked: switches.Switches) -> Activation:
    """What this process runs, after whatever is asked for has been done."""
    if asked.mode == "off":
        version = getattr(sys.modules.get("vllm"), "__version__", "unknown")
        return Activation(records.OFF, str(version), "", (), "")
    try:
        target = running_vllm()
    except TargetError as error:  # in an archive, frozen, or nothing that could be patched
        return impossible(str(error), asked)
    return activate(target, asked, _after_exec, _bypassed)


def _speak_after_fork(process: _Process) -> None:
    """Say once for a forked child what it runs; it has its name by the time it loads plugins."""
    if process.spoke == os.getpid():
        return
    process.spoke = os.getpid()
    process.record = process.record._replace(role=records.role())
    _write(process.record)
    speech.say([(logging.INFO, _line(process))])


def running_vllm() -> Target:
    """The vLLM that this process imported; before it did, the one that it would import.

    :raises TargetError: if there is none, or it is no plain folder.
    """
    vllm = sys.modules.get("vllm")
    file = getattr(vllm, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        from overlay.targets.installed import resolve_installed

        return resolve_installed()
    from overlay.targets.folder import build

    package = Path(os.path.dirname(os.path.abspath(file)))
    return build(
        package,
        os.path.dirname(os.path.realpath(package)),
        fallback=lambda: getattr(vllm, "__version__", None),
    )


def _identity() -> tuple[str, str]:
    return overlay.__version__, os.path.realpath(__file__)


def _is_ours_already() -> bool:
    """Whether this overlay has started in this process, before its modules were loaded anew."""
    other = getattr(sys, _MARK, None)
    if other is None or other == _identity():
        return other is not None
    raise TwoOverlays(
        f"vllm-overlay: two overlays are installed: {other[0]} ({other[1]}) is at work in this "
        f"process, and {overlay.__version__} ({_identity()[1]}) was loaded after it; uninstall one "
        "of them, or name the one you want in VLLM_PLUGINS"
    )


def _say(process: _Process) -> None:
    found = process.activation
    lines = [(logging.WARNING, f"vllm-overlay: {text}") for text in found.warnings]
    for feature in found.features:
        if feature.active:
            continue
        if feature.harmless:
            lines.append(
                (logging.DEBUG, f"vllm-overlay: {feature.id} is {feature.state.value} here")
            )
            continue
        text = f"vllm-overlay: {feature.id} is left out ({feature.state.value}): {feature.reason}"
        lines.append((logging.WARNING if feature.asked else logging.DEBUG, text))
    speech.say([*lines, (logging.INFO, _line(process))])


def _line(process: _Process) -> str:
    """The one line at start; a fork's record may know more than what was activated."""
    record, asked = process.record, process.asked
    if record.way == records.OFF:
        return "vllm-overlay: off (OVERLAY=off); this process runs vLLM as it is installed"
    text = (
        f"vllm-overlay: process {os.getpid()} runs {record.summary} on vLLM {record.vllm}, "
        f"patch set {record.digest[:12]}"
    )
    if asked.features is not None:
        text += f", OVERLAY_FEATURES={','.join(sorted(asked.features))}"
    return text


def _checked(asked: switches.Switches) -> tuple[str, ...]:
    """What is to be said of the variables that features declare, before a weight is read.

    :raises UsageError: for values that no feature accepts.
    """
    if asked.mode == "off" or not asked.further:
        return asked.warnings
    from overlay.features.switches import check_values, declarations
    from overlay.in_memory.receipt import patches_folders

    checked = check_values(asked.all, declarations(patches_folders(asked)))
    if checked.wrong:
        raise UsageError("vllm-overlay: " + "\n".join(checked.wrong))
    return (*asked.warnings, *checked.warnings)


def _describe(found: Activation) -> records.ProcessRecord:
    pid = os.getpid()
    return records.ProcessRecord(
        pid=pid,
        started=records.start_time(pid),
        host=socket.gethostname(),
        role=records.role(),
        rank=None,
        vllm=found.vllm,
        root=found.root,
        way=found.way,
        digest=found.digest,
        summary="off (OVERLAY=off)" if found.way == records.OFF else found.summary,
        left_out=_left_out(found),
    )


def _left_out(found: Activation) -> tuple[str, ...]:
    """What does not run here that should, for whoever asks later; the log has it in full."""
    if found.impossible is not None:
        return (f"every feature: {found.impossible}",)
    return tuple(
        f"{one.id} ({one.state.value}): {one.reason.splitlines()[0]}" for one in found.left_out
    )


def _write(record: records.ProcessRecord) -> None:
    try:
        records.write(record)
    except OSError as error:
        # A record is for whoever asks `overlay status --live`; serving does not depend on it.
        text = f"vllm-overlay: this process cannot record what it runs: {error}"
        speech.say([(logging.WARNING, text)])


def _after_fork() -> None:
    """A forked child runs what its parent runs, under a pid of its own."""
    speech.forget()
    if _process is not None:
        pid = os.getpid()
        started = records.start_time(pid)
        _process.record = _process.record._replace(
            pid=pid, started=started, role=records.role(), rank=None
        )
        _write(_process.record)


def _after_exec(name: str, module: ModuleType, stored: StoredModule) -> None:
    """Compare the running code with the plan, and record it."""
    if _process is None:  # imported while start() was still at work
        raise HookError(f"vllm-overlay: {name} was imported before its process was recorded")
    from overlay.in_memory import verification as evidence

    scopes = evidence.compare(module, stored.code, _process.activation.scopes.get(name, ()))
    wrong = [scope for scope, state in scopes.items() if state == evidence.DIFFERS]
    if wrong:
        raise HookError(
            f"vllm-overlay: {name} was executed, but {', '.join(wrong)} is not the planned code; "
            "another import hook or patcher replaced it. Remove that, or set OVERLAY=off."
        )
    _process.record = _process.record.with_module(
        records.ModuleRecord(name, sha256(stored.source), scopes)
    )
    _write(_process.record)


def _bypassed(name: str, text: str) -> None:
    """Say and record that a planned module runs its pristine code."""
    if _process is None:  # loaded while start() was still at work
        raise HookError(text)
    scopes = _process.activation.scopes.get(name) or ("<module>",)
    record = _process.record.with_module(
        records.ModuleRecord(name, "", dict.fromkeys(scopes, records.UNPATCHED))
    )
    names = sorted(one.module for one in record.modules if one.state == records.UNPATCHED)
    found = _process.activation
    _process.record = record._replace(
        # Ranks that run the same code still agree.
        digest=sha256(f"{found.digest} without {' '.join(names)}".encode()),
        summary=f"{found.summary} but {', '.join(names)} {records.UNPATCHED}",
    )
    _write(_process.record)
    speech.say([(logging.WARNING, text)])


def _rank_report(rank: int) -> RankReport:
    from overlay.in_memory import import_hook as hook
    from overlay.in_memory import ranks

    assert _process is not None
    hook.require_asked()
    role = "worker" if _process.record.role == "main" else _process.record.role
    _process.record = _process.record._replace(rank=rank, role=role)
    _write(_process.record)
    record = _process.record
    return ranks.report(rank, record.vllm, record.digest, record.summary)
