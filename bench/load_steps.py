"""What the steps of a loaded engine were: their classes, how long each took, the host's part."""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

#: Names of the classes of steps, in the result.
DECODES, MIXED, PREFILLS = "decodes", "mixed", "prefills"


@dataclass
class Step:
    """One call of the runner.

    :ivar class_: what the step's requests did.
    :ivar requests: how many requests it served.
    :ivar tokens: how many tokens were scheduled.
    :ivar began: seconds, of ``time.perf_counter``.
    :ivar host: seconds in each method of the runner and the drafter, by name.
    """

    class_: str
    requests: int
    tokens: int
    began: float
    host: dict[str, float] = field(default_factory=dict)


def class_of(scheduled: dict[str, int], drafts: dict[str, list[int]]) -> str:
    """Tell which class a step is of.

    :param scheduled: the number of tokens of each request.
    :param drafts: the draft tokens to be verified of each request that has some.
    """
    decoding = sum(tokens == 1 + len(drafts.get(name, ())) for name, tokens in scheduled.items())
    if decoding == len(scheduled):
        return DECODES
    return MIXED if decoding else PREFILLS


def by_class(steps: list[Step], ended: float) -> dict[str, Any]:
    """Figures of each class of steps; a step lasts until the next one begins.

    :param ended: when the last step ended, as ``Step.began``.
    """
    ends = [step.began for step in steps[1:]] + [ended]
    lasted: dict[str, list[float]] = collections.defaultdict(list)
    members: dict[str, list[Step]] = collections.defaultdict(list)
    for step, end in zip(steps, ends, strict=True):
        lasted[step.class_].append(end - step.began)
        members[step.class_].append(step)
    total = sum(map(sum, lasted.values()))
    return {
        name: {
            "steps": len(seconds),
            "share_of_time": round(sum(seconds) / total, 4),
            "median_ms": round(1000 * statistics.median(seconds), 3),
            "mean_ms": round(1000 * statistics.fmean(seconds), 3),
            "mean_tokens": round(statistics.fmean(step.tokens for step in members[name]), 1),
            "mean_requests": round(statistics.fmean(step.requests for step in members[name]), 1),
            "host_median_ms": host_medians(members[name]),
        }
        for name, seconds in sorted(lasted.items())
    }


def host_medians(steps: Iterable[Step]) -> dict[str, float]:
    """Median milliseconds of each timed method."""
    taken: dict[str, list[float]] = collections.defaultdict(list)
    for step in steps:
        for name, seconds in step.host.items():
            taken[name].append(seconds)
    return {name: round(1000 * statistics.median(values), 3) for name, values in taken.items()}


class Watch:
    """Keeps what each call of the runner served, in the process of the engine."""

    def __init__(self, runner: Any) -> None:
        self.steps: list[Step] = []
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        self._time(runner, "execute_model", self._begin)
        self._time(runner, "sample_tokens", None)
        self._time(drafter, "propose", None)

    def _begin(self, scheduler_output: Any, *_: Any, **__: Any) -> None:
        scheduled = scheduler_output.num_scheduled_tokens
        if scheduled:
            class_ = class_of(scheduled, scheduler_output.scheduled_spec_decode_tokens)
            tokens = scheduler_output.total_num_scheduled_tokens
            self.steps.append(Step(class_, len(scheduled), tokens, time.perf_counter()))

    def _time(self, owner: Any, name: str, before: Callable[..., None] | None) -> None:
        inner = getattr(owner, name, None)
        if inner is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            begun = time.perf_counter()
            result = inner(*args, **kwargs)
            if self.steps:
                host = self.steps[-1].host
                host[name] = host.get(name, 0.0) + time.perf_counter() - begun
            return result

        setattr(owner, name, call)
