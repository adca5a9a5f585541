"""A command's answer: the data that the JSON, the table and the exit code are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.results import FeatureResult, Notice, State, worst

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess


@dataclass(frozen=True)
class TargetReport:
    """One target's part of a command's answer.

    :ivar target: what the user named, or a release.
    :ivar vllm: the release of the target; ``None`` where it cannot be told.
    :ivar root: the folder that holds the package; ``None`` for read-only targets.
    :ivar features: those that the user asked about.
    :ivar interrupted: whether an apply or revert was interrupted there and still has to end.
    :ivar package: the package that is patched.
    """

    target: str
    vllm: str | None
    root: Path | None
    features: tuple[FeatureResult, ...] = ()
    notices: tuple[Notice, ...] = ()
    interrupted: bool = False
    package: str = "vllm"

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


@dataclass(frozen=True)
class TargetFailure:
    """A target of which nothing can be said, and why.

    :ivar target: what the user named; ``None``: the vLLM that this Python would import.
    :ivar error: one or several lines.
    """

    target: str | None
    error: str


OK, ATTENTION, ERROR, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class TopicEntry:
    """A topic as ``list`` shows it.

    :ivar variants: the closed ranges that it has a variant for, oldest first.
    :ivar holes: known releases inside the feature's range that no variant covers.
    """

    name: str
    variants: tuple[str, ...]
    holes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeatureEntry:
    """A feature as ``list`` shows it.

    :ivar upstream: the upstream change it goes back to; empty where there is none.
    :ivar retires: how a release is recognised that has the feature itself, one sentence each.
    :ivar added: the modules that it adds to vLLM.
    :ivar needs: what else must hold for it to have an effect, in words.
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


@dataclass(frozen=True)
class Report:
    """What a command found and did.

    :ivar exit: 0 nothing needs the user, 1 something does, 2 usage or environment.
    :ivar verdict: one sentence that agrees with ``exit``; the last line for human readers.
    :ivar error: why the command could not answer, where ``exit`` is 2.
    :ivar matrix: whether the targets are releases to be shown side by side.
    :ivar catalogue: what ``list`` shows; ``None`` for every other command.
    :ivar diff: what ``diff`` prints.
    :ivar processes: the running processes of vLLM; ``None`` where nobody asked.
    :ivar doctor: the parts of ``doctor``'s page that stand nowhere else, as plain data.
    """

    command: str
    exit: int
    verdict: str
    targets: tuple[TargetReport, ...] = ()
    error: str | None = None
    matrix: bool = False
    catalogue: tuple[FeatureEntry, ...] | None = None
    diff: bytes | None = None
    processes: tuple[LiveProcess, ...] | None = None
    doctor: dict[str, Any] | None = None


def failure(command: str, error: str) -> Report:
    """The report of a command that usage or the environment stopped.

    :param command: its name, or ``overlay`` where it is not known.
    """
    name = command if command == "overlay" else f"overlay {command}"
    return Report(command, ERROR, f"{name} stopped: see the error.", error=error)


def enumeration(words: Sequence[str], most: int = 6) -> str:
    """``a, b and c``; of more than ``most`` words the first and how many others there are."""
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} others"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
