"""Reports: the answers of the commands, one type for each question.

Text and JSON are readers of these types.  What a report concludes (a code, a sentence, and the
exit status that goes with the code) is computed once, by ``overlay.report.wording``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay.report.codes import Code, Exit, Verdict
from overlay.results import FeatureResult, Notice, Reason, State, worst

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess
    from overlay.report.lines import Line


class Obstacle(NamedTuple):
    """Something in a target that needs the user, beyond the state of a feature.

    :ivar code: what it is, for programs: ``not-at-hand`` (features were applied from a folder of
        patches that was not named), ``copies-damaged`` (revert would fail), ``required-missing``
        (a feature that is required is not applied).
    :ivar summary: the same for people, as the part of a sentence.
    :ivar reason: in full, with what to do.
    """

    code: Code
    summary: str
    reason: Reason


class Pending(Enum):
    """What an ``apply`` would do to patches that are applied, or were."""

    COMPLETE = "write again what was put back in part"
    UPDATE = "bring what is applied up to date"
    REMOVE = "remove what an earlier apply left"


@dataclass(frozen=True)
class TargetReport:
    """State of one target.

    :ivar target: what the user named, or a release.
    :ivar vllm: the version of the package; ``None`` where it cannot be told.
    :ivar root: the folder that holds the package; ``None`` for read-only targets.
    :ivar features: those that the user asked about.
    :ivar interrupted: whether an apply or revert was interrupted there and still has to end.
    :ivar package: the package that is patched.
    :ivar obstacles: what needs the user beyond the features' states.
    :ivar in_memory: ids of the features that the plugin would patch in memory in the next process.
    :ivar left_out: ids of the features without which an ``apply`` of the others would go on.
    :ivar unrecorded: ids of the features whose bytes are there without a ledger.
    :ivar pending: what ``overlay apply`` would do there beside applying what can be applied.
    """

    target: str
    vllm: str | None
    root: Path | None
    features: tuple[FeatureResult, ...] = ()
    notices: tuple[Notice, ...] = ()
    interrupted: bool = False
    package: str = "vllm"
    obstacles: tuple[Obstacle, ...] = ()
    in_memory: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()
    pending: Pending | None = None

    @property
    def needs_attention(self) -> bool:
        """Whether somebody has to act: a state, an obstacle or an interruption says so."""
        return (
            self.interrupted
            or bool(self.obstacles)
            or any(feature.state.needs_attention for feature in self.features)
        )

    @property
    def applied(self) -> tuple[str, ...]:
        """The ids of the features that are applied."""
        return tuple(entry.feature for entry in self.features if entry.state is State.APPLIED)

    @property
    def state(self) -> State:
        """The worst state of a feature; ``applied`` where all that could be applied here is.

        What the release has itself, or what is not made for it, does not count against that.
        """
        whole = worst(feature.state for feature in self.features)
        settled = whole in (State.APPLIED, State.UPSTREAMED, State.INAPPLICABLE)
        return State.APPLIED if settled and self.applied else whole


class TargetFailure(NamedTuple):
    """A target of which nothing can be said, and why.

    :ivar target: what the user named; ``None``: the vLLM that this Python would import.
    :ivar error: one or several lines.
    """

    target: str | None
    error: str


class TopicEntry(NamedTuple):
    """A topic as ``list`` shows it.

    :ivar variants: the closed ranges that it has a variant for, oldest first.
    :ivar holes: known releases inside the feature's range that no variant covers.
    """

    name: str
    variants: tuple[str, ...]
    holes: tuple[str, ...] = ()


class FeatureEntry(NamedTuple):
    """A feature as ``list`` shows it.

    :ivar upstream: the upstream change it goes back to; empty where there is none.
    :ivar retires: how a release is recognised that has the feature itself, one sentence each.
    :ivar added: the modules that it adds to its package.
    :ivar reason: why it is kept as a patch (``waiting``, ``local`` or ``never``), if it says so.
    :ivar warnings: what the user should know about its folder.
    :ivar needs: what else must hold for it to have an effect, in words.
    :ivar package: the import name of the package that it patches.
    """

    feature: str
    title: str
    why: str
    releases: str
    upstream: str
    retires: tuple[str, ...]
    topics: tuple[TopicEntry, ...]
    added: tuple[str, ...]
    origin: str
    digest: str
    needs: tuple[str, ...] = ()
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    package: str = "vllm"


@dataclass(frozen=True)
class Report:
    """Answer of a command; the base of one type for each question.

    :ivar conclusion: what follows from it, by ``overlay.report.wording``.
    """

    _command: ClassVar[str] = "overlay"
    conclusion: Verdict

    @property
    def command(self) -> str:
        """The command that it answers."""
        return self._command

    @property
    def verdict(self) -> str:
        """One sentence that agrees with ``exit``; the last line for people."""
        return self.conclusion.text

    @property
    def code(self) -> Code:
        """What the command concluded, for programs."""
        return self.conclusion.code

    @property
    def exit(self) -> Exit:
        """Exit status: 0 nothing needs the user, 1 something does, 2 usage or environment."""
        return self.code.exit

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The targets that it speaks of."""
        return ()

    @property
    def error(self) -> str | None:
        """Why the command could not answer, where ``exit`` is 2."""
        return None

    @property
    def body(self) -> bytes | None:
        """What goes to standard output as it is; ``None`` where the text of the report does."""
        return None

    def own_lines(self) -> Iterable[Line]:
        """The lines for people of a report that speaks of more than targets.

        Each such type brings them itself, so that no command imports the reports of others.
        """
        return ()

    def own_data(self) -> dict[str, Any]:
        """The same for JSON: what is added to the keys that every report has."""
        return {}


@dataclass(frozen=True)
class FailureReport(Report):
    """A command that usage or the environment stopped.

    :ivar name: the command, or ``overlay`` where it is not known.
    :ivar problem: why, in one or several lines.
    """

    name: str
    problem: str

    @property
    def command(self) -> str:
        """The command that was stopped."""
        return self.name

    @property
    def error(self) -> str:
        """Why it was stopped."""
        return self.problem


@dataclass(frozen=True)
class CheckReport(Report):
    """Whether features can be applied to targets.

    :ivar checked: the targets that could be read.
    :ivar failures: those that could not.
    """

    _command: ClassVar[str] = "check"
    checked: tuple[TargetReport, ...]
    failures: tuple[TargetFailure, ...] = ()

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The targets that could be read."""
        return self.checked

    @property
    def error(self) -> str | None:
        """Why some targets could not be read."""
        return "\n".join(failure.error for failure in self.failures) or None


@dataclass(frozen=True)
class _OneTarget(Report):
    """Answer that speaks of one target.

    :ivar target: vLLM there, or the one package that is meant.
    :ivar others: the other packages there that features are for.
    """

    target: TargetReport
    others: tuple[TargetReport, ...] = field(default=(), kw_only=True)

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The target, and the other packages there."""
        return (self.target, *self.others)


@dataclass(frozen=True)
class StatusReport(_OneTarget):
    """What is applied to a target.

    :ivar patches: the folders of patches that were read beside the shipped one, in order.
    """

    _command: ClassVar[str] = "status"
    patches: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApplyReport(_OneTarget):
    """What ``apply`` did, or would do.

    :ivar changed: the files of the package that were written or removed, sorted.
    """

    _command: ClassVar[str] = "apply"
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class RevertReport(_OneTarget):
    """What ``revert`` did.

    :ivar changed: the files of the package that were written or removed, sorted.
    :ivar kept: the feature that holds the edits, where there were any and they were to be kept.
    """

    _command: ClassVar[str] = "revert"
    changed: tuple[str, ...] = ()
    kept: Report | None = None

    def own_lines(self) -> Iterable[Line]:
        """The text of the feature that holds the edits."""
        return () if self.kept is None else self.kept.own_lines()

    def own_data(self) -> dict[str, Any]:
        """The feature that holds the edits, under ``kept``."""
        made = {} if self.kept is None else self.kept.own_data()
        return {"kept": made["new"]} if "new" in made else {}


@dataclass(frozen=True)
class AdoptReport(_OneTarget):
    """What ``adopt`` took over."""

    _command: ClassVar[str] = "adopt"


@dataclass(frozen=True)
class DiffReport(_OneTarget):
    """The change to a pristine target.

    :ivar diff: one unified diff; empty where there is no change or a feature does not fit.
    """

    _command: ClassVar[str] = "diff"
    diff: bytes = b""

    @property
    def body(self) -> bytes:
        """The diff."""
        return self.diff


class ReleaseEntry(NamedTuple):
    """A release as ``list --releases`` shows it.

    :ivar known: whether the shipped features are made and tested for it.
    :ivar yanked: whether the index has withdrawn it.
    :ivar prerelease: whether it is a pre-release.
    """

    release: str
    known: bool
    yanked: bool = False
    prerelease: bool = False


@dataclass(frozen=True)
class ListReport(Report):
    """The features at hand.

    :ivar releases: those of the package index, oldest first; ``None`` where nobody asked.
    """

    _command: ClassVar[str] = "list"
    features: tuple[FeatureEntry, ...]
    releases: tuple[ReleaseEntry, ...] | None = None


@dataclass(frozen=True)
class ProcessesReport(Report):
    """The running vLLM processes of this user, and what each has loaded."""

    _command: ClassVar[str] = "status"
    processes: tuple[LiveProcess, ...]


@dataclass(frozen=True)
class DoctorReport(Report):
    """What a bug report needs.

    :ivar installed: the vLLM that this Python would import; ``None`` where there is none.
    :ivar processes: the running vLLM processes of this user.
    :ivar facts: the sections of the page, by name; each a mapping of plain values.
    :ivar problems: what needs the user, one sentence each.
    :ivar others: the other packages there that features are for.
    """

    _command: ClassVar[str] = "doctor"
    installed: TargetReport | None
    processes: tuple[LiveProcess, ...]
    facts: Mapping[str, Any]
    problems: tuple[str, ...]
    others: tuple[TargetReport, ...] = ()

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The installed vLLM, if there is one, and the other packages."""
        return () if self.installed is None else (self.installed, *self.others)


class CachePart(NamedTuple):
    """A part of the cache.

    :ivar name: its folder; :ivar contents: what it holds, in words.
    :ivar entries: how many files and folders; :ivar size: how many bytes in all.
    """

    name: str
    contents: str
    entries: int
    size: int


@dataclass(frozen=True)
class CacheReport(Report):
    """What the cache holds, or held before it was emptied.

    :ivar folder: where it lies.
    :ivar path_only: whether only its path was asked for.
    """

    _command: ClassVar[str] = "cache"
    folder: Path
    parts: tuple[CachePart, ...]
    path_only: bool = False

    @property
    def body(self) -> bytes | None:
        """The path, where only that was asked for."""
        return os.fsencode(self.folder) + b"\n" if self.path_only else None


def failure(command: str, error: str, code: Code = Code.ENVIRONMENT) -> FailureReport:
    """The report of a command that usage or the environment stopped.

    :param command: its name, or ``overlay`` where it is not known.
    """
    name = command if command == "overlay" else f"overlay {command}"
    return FailureReport(Verdict(code, f"{name} stopped: see the error."), command, error)
