"""What the plugin does in one process: activate, record, compare, and say so once."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass, replace
from types import ModuleType

from overlay.auto import evidence, ranks, records, switches
from overlay.auto.activate import Activation, activate
from overlay.auto.hook import HookError
from overlay.auto.store import StoredModule, sha256

#: Under vLLM's logger, so that its handlers and levels apply.
logger = logging.getLogger("vllm.overlay")


@dataclass
class _Process:
    """The state of this process; there is one at most."""

    activation: Activation
    record: records.ProcessRecord


_process: _Process | None = None


def start(environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Do for this process what the environment asks for; a second call does nothing.

    :raises OverlayError: if a required feature cannot run here, a switch has an unknown value, or
        a module to be patched was imported already.
    """
    global _process  # noqa: PLW0603  (one process has one state)
    if _process is not None:
        return
    asked = switches.read(environment)
    if asked.mode == "off":
        logger.info("vllm-overlay: off (OVERLAY=off); this process runs vLLM as it is installed")
        return
    switches.carry_to_ray(environment)
    from overlay.targets.installed import resolve_installed

    target = resolve_installed()
    found = activate(target, asked, _after_exec)
    _process = _Process(found, _describe(found))
    os.register_at_fork(after_in_child=_after_fork)
    _write(_process.record)
    ranks.watch(_rank_report)
    _say(found)


def _say(found: Activation) -> None:
    for warning in found.warnings:
        logger.warning("vllm-overlay: %s", warning)
    for feature in found.features:
        if feature.active:
            continue
        if feature.state in ("upstreamed", "inapplicable"):
            logger.debug("vllm-overlay: %s is %s here", feature.id, feature.state)
        else:
            logger.warning(
                "vllm-overlay: %s is left out (%s): %s",
                feature.id,
                feature.state,
                feature.why or "not applied on disk",
            )
    logger.info(
        "vllm-overlay: process %d runs %s on vLLM %s, patch set %s",
        os.getpid(),
        found.summary,
        found.vllm,
        found.digest[:12],
    )


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
        summary=found.summary,
    )


def _write(record: records.ProcessRecord) -> None:
    try:
        records.write(record)
    except OSError as error:
        # A record is for whoever asks `overlay status --live`; serving does not depend on it.
        logger.warning("vllm-overlay: this process cannot record what it runs: %s", error)


def _after_fork() -> None:
    """A forked child runs what its parent runs, under a pid of its own."""
    if _process is not None:
        pid = os.getpid()
        started = records.start_time(pid)
        _process.record = replace(
            _process.record, pid=pid, started=started, role=records.role(), rank=None
        )
        _write(_process.record)


def _after_exec(name: str, module: ModuleType, stored: StoredModule) -> None:
    """Compare the running code with the plan, and record it."""
    if _process is None:  # imported while start() was still at work
        raise HookError(f"vllm-overlay: {name} was imported before its process was recorded")
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


def _rank_report(rank: int) -> ranks.RankReport:
    assert _process is not None
    _process.record = replace(_process.record, rank=rank, role="worker")
    _write(_process.record)
    found = _process.activation
    return ranks.report(rank, found.vllm, found.digest, found.summary)
