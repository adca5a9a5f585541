"""What reports say of a target.

The reports themselves have modules of their own beside this one, so that a command imports its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.errors import NOTHING_NAMED, Command, Invocation
from overlay.report.codes import Code
from overlay.results import FeatureResult, Notice, Reason, State, worst

if TYPE_CHECKING:
    from overlay._features.vllm_defaults import RunnerNote


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
    :ivar early: ids of the features that cannot be patched in memory, each with the reason.
    :ivar faults: id and symptom of each mend that could be applied, whose fault the release has.
    :ivar left_out: ids of the features without which an ``apply`` of the others would go on.
    :ivar unrecorded: ids of the features whose bytes are there without a ledger.
    :ivar runner: which of its features the release runs by default, where that was asked.
    :ivar idle: ids of the features that are required and that the release runs for no model.
    :ivar pending: what ``overlay apply`` would do there beside applying what can be applied.
    :ivar invocation: by which arguments the user meant it.
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
    early: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()
    runner: RunnerNote | None = None
    idle: tuple[str, ...] = ()
    pending: Pending | None = None
    invocation: Invocation = NOTHING_NAMED

    def command(self, name: str, *words: str) -> Command:
        """A command on this target, for a message; one that writes, if it can be written to."""
        return self.invocation.command(name, *words, read_only=self.root is None)

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
    :ivar cause: the part of it that other releases may share, and that is told once for all.
    """

    target: str | None
    error: str
    cause: str | None = None
