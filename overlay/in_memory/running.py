"""The state of this process: what it was started with, what it runs, its record and its lines."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from overlay import _processes, settings
from overlay._features.sources import EFFECTS_MODULE, EFFECTS_PATH, patches_folders
from overlay.in_memory import log
from overlay.in_memory.import_watch import HookError
from overlay.in_memory.ranks import RankReport
from overlay.package import parse_version
from overlay.results import ANY_MORE, Way
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay._features.switches import Declaration
    from overlay.in_memory import Activation
    from overlay.in_memory.module_cache import StoredModule
    from overlay.results import ModelRunner


class RunningProcess:
    """The state of this process; there is one at most.

    It hears what the import hook executed (``executed``, ``bypassed``), what the ranks want to
    compare (``rank_report``) and what features do (``publish``), and keeps the record up to date.

    :ivar switches: what the variables that it was started with ask for.
    :ivar activation: what became of each feature; only after ``activated``.
    """

    activation: Activation
    record: _processes.ProcessRecord

    def __init__(self, switches: settings.Switches) -> None:
        self.switches = switches
        self._declared: dict[str, Declaration] | None = None
        self._activated = False
        # The pid of the process that said what it runs; a fork has not.
        self._said_in = os.getpid()
        # Code of several threads may report at once; the record is one file.
        self._lock = threading.Lock()

    def activated(self, activation: Activation) -> None:
        """Take over what activation decided, and write the record."""
        self.activation = activation
        pid = os.getpid()
        self.record = _processes.ProcessRecord(
            pid=pid,
            started=_processes.start_time(pid),
            host=socket.gethostname(),
            role=_processes.role(),
            rank=None,
            vllm=activation.vllm,
            root=activation.root,
            way=activation.way,
            digest=activation.digest,
            summary=activation.summary,
            left_out=_left_out(activation),
            required=tuple(sorted(self.switches.required)),
        )
        self._activated = True
        self._write()

    # For the import hook

    def executed(self, name: str, module: ModuleType, stored: StoredModule) -> None:
        """Compare the code of a patched module that was executed with the plan, and record it.

        :raises HookError: if other code than planned runs.
        """
        if not self._activated:
            raise HookError(
                f"vllm-overlay: {name} was imported before its process was recorded; load the "
                "plugin before that import, or set OVERLAY=off"
            )
        from overlay.in_memory import import_hook

        scopes = import_hook.compare(module, stored.code, self.activation.scopes.get(name, ()))
        wrong = [scope for scope, state in scopes.items() if state is _processes.CodeState.DIFFERS]
        if wrong:
            raise HookError(
                f"vllm-overlay: {name} was executed, but {', '.join(wrong)} is not the planned "
                "code; another import hook or patcher replaced it. Remove that, or set OVERLAY=off."
            )
        entry = _processes.ModuleRecord(name, sha256(stored.source), scopes)
        self._change(self.record.with_module(entry))

    def bypassed(self, name: str, text: str) -> None:
        """Say and record that a planned module runs its pristine code."""
        if not self._activated:
            raise HookError(text)
        scopes = self.activation.scopes.get(name) or ("<module>",)
        record = self.record.with_module(
            _processes.ModuleRecord(name, "", dict.fromkeys(scopes, _processes.CodeState.UNPATCHED))
        )
        names = sorted(
            module.module
            for module in record.modules
            if module.state is _processes.CodeState.UNPATCHED
        )
        digest = f"{self.activation.digest} without {' '.join(names)}"
        summary = f"{self.activation.summary} but {', '.join(names)} unpatched"
        # Ranks that run the same code still agree.
        self._change(record._replace(digest=sha256(digest.encode()), summary=summary))
        log.say([(logging.WARNING, text)])

    @staticmethod
    def _look_for_bypassed() -> None:
        """Hear now of what the hook was not asked for; :raises HookError: where it is required."""
        from overlay.in_memory import import_hook

        import_hook.require_asked()

    # For the comparison of ranks

    def rank_report(self, rank: int) -> RankReport:
        """What this process runs, for the comparison with its peers."""
        self._look_for_bypassed()
        role = "worker" if self.record.role == _processes.MAIN else self.record.role
        self._change(self.record._replace(rank=rank, role=role))
        record = self.record
        return RankReport(
            rank,
            record.host,
            record.pid,
            record.vllm,
            record.digest,
            record.summary,
            self.activation.packages,
        )

    # For the watch over effects

    def features(self) -> tuple[str, ...]:
        """The ids of the features whose patched code this process has."""
        return tuple(each.id for each in self.activation.features if each.active)

    def requires(self, feature: str) -> bool:
        """Whether vLLM must not serve where ``feature`` has no effect.

        A situational feature is required by its name only: ``all`` would refuse to serve nearly
        everywhere.
        """
        declared = self.declared().get(feature)
        if declared is not None and declared.situational:
            return feature in self.switches.required
        return self.switches.requires(feature)

    def declared(self) -> Mapping[str, Declaration]:
        """What the features that are at hand declare, by id."""
        if self._declared is None:
            from overlay._features.switches import declarations

            declared = declarations(patches_folders(self.switches))
            self._declared = {declaration.id: declaration for declaration in declared}
        return self._declared

    def runner(self, feature: str) -> ModelRunner | None:
        """The only model runner that a feature patches, as ``overlay check`` tells it."""
        from overlay._features.vllm_defaults import has_ascend, runner_of

        declared = self.declared().get(feature)
        if declared is not None and declared.model_runner is not None:
            return declared.model_runner
        activation = self.activation
        places = (p for each in activation.features if each.id == feature for p in each.places)
        release = parse_version(activation.vllm)
        return runner_of(places, release, ascend=has_ascend(activation.root))

    def publish(
        self,
        effects: tuple[_processes.EffectRecord, ...],
        counters: tuple[tuple[str, str], ...],
        counts_fd: int | None,
        meanings: tuple[_processes.Meaning | None, ...],
    ) -> None:
        """Write into the record what features do and count; see ``ProcessRecord``."""
        self._look_for_bypassed()
        self._change(
            self.record._replace(
                effects=effects, counters=counters, counts_fd=counts_fd, meanings=meanings
            )
        )

    # Lines and record

    def say(self) -> None:
        """Say what this process runs, and what it leaves out."""
        summary = (logging.INFO, self._line())
        activation = self.activation
        lines = [(logging.WARNING, f"vllm-overlay: {text}") for text in activation.warnings]
        retired: dict[str, list[str]] = {}
        for feature in activation.features:
            if feature.active:
                continue
            if feature.harmless and feature.allowed and ANY_MORE in (feature.why or ""):
                retired.setdefault(feature.reason, []).append(feature.id)
                continue
            if feature.harmless:
                text = f"vllm-overlay: {feature.id} is {feature.state.value} here"
                lines.append((logging.DEBUG, text))
                continue
            text = (
                f"vllm-overlay: {feature.id} is left out ({feature.state.value}): {feature.reason}"
            )
            lines.append((logging.WARNING if feature.allowed else logging.DEBUG, text))
        for why, ids in retired.items():
            lines.append((logging.INFO, f"vllm-overlay: nothing to do for {', '.join(ids)}: {why}"))
        log.say([*lines, summary])

    def say_after_fork(self) -> None:
        """Say once what a forked child runs: when it loads plugins, it has its name."""
        if self._said_in == os.getpid():
            return
        self._said_in = os.getpid()
        self._change(self.record._replace(role=_processes.role()))
        log.say([(logging.INFO, self._line())])

    def after_fork(self) -> None:
        """Give a forked child a record of its own: it runs what its parent runs."""
        log.forget()
        self._lock = threading.Lock()
        pid = os.getpid()
        self._change(
            self.record._replace(
                pid=pid,
                started=_processes.start_time(pid),
                role=_processes.role(),
                rank=None,
                effects=(),
                counters=(),
                counts_fd=None,
                meanings=(),
            )
        )

    def _line(self) -> str:
        """The one line at start; a fork's record may know more than what was activated."""
        record = self.record
        if record.way is Way.OFF:
            installed = "; this process runs vLLM as it is installed"
            patched_disk = self.activation.off_summary is not None
            return f"vllm-overlay: {record.summary}{'' if patched_disk else installed}"
        patched = record.way.patched
        text = (
            f"vllm-overlay: process {os.getpid()} {'has the patches' if patched else 'runs'} "
            f"{record.summary} on vLLM {record.vllm}, patch set {record.digest[:12]}"
        )
        if self.switches.features is not None:
            text += f", OVERLAY_FEATURES={','.join(sorted(self.switches.features))}"
        if patched and self._reports():
            text += "; whether they take effect is told once the model is loaded"
        return text

    def _reports(self) -> bool:
        """Whether any of the patched code reports what it does."""
        there = os.path.exists(os.path.join(self.activation.root, EFFECTS_PATH))
        return there or EFFECTS_MODULE in self.activation.modules

    def _change(self, record: _processes.ProcessRecord) -> None:
        self.record = record
        self._write()

    def _write(self) -> None:
        try:
            with self._lock:
                _processes.write(self.record)
        except OSError as error:
            # A record is for whoever asks `overlay status --live`; serving does not depend on it.
            log.warn(f"this process cannot record what it runs: {error}")


def _left_out(activation: Activation) -> tuple[str, ...]:
    """The features left out of this process, as its record keeps them; the log has all of it."""
    if activation.impossible is not None:
        return (f"every feature: {activation.impossible}",)
    return tuple(
        f"{feature.id} ({feature.state.value}): {feature.reason.splitlines()[0]}"
        for feature in activation.left_out
    )
