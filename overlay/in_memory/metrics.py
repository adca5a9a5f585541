"""Metrics of the overlay: their names, and their values for the processes of a server.

Nothing is counted here, and nothing is kept between two scrapes: see ``_processes.live``.  How the
values get into vLLM's registry is ``metrics_watch``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from overlay._processes import Effect, Meaning
from overlay._processes.live import Member, Number, family
from overlay.untrusted import printable

#: What the name of every metric of the overlay begins with.
PREFIX = "vllm_overlay_"

_WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")

#: What the collector tells by itself, and no feature can.
_RESERVED = ("info", "feature_state", "attention", "events", "unreadable")

#: The labels that say whose number it is; no feature can give them another value.
_OWN = ("feature", "process", "rank", "pid")


class Metric(NamedTuple):
    """One metric: its kind, and what it says in one sentence."""

    gauge: bool
    help: str


#: The metrics that are described; a feature may report further ones.
METRICS = {
    "info": Metric(True, "What a process runs: digest of the patch set, features, vLLM; always 1."),
    "feature_state": Metric(True, "1 for the state of a feature: active, idle, pending, patched."),
    "attention": Metric(True, "Whether somebody should look at a process: 1, and why; else 0."),
    "replays": Metric(False, "Replays of captured draft graphs."),
    "left_to_upstream": Metric(False, "Batches whose drafts vLLM's own code ran, by reason."),
    "padded_steps": Metric(False, "Steps replayed for other data-parallel ranks alone."),
    "graphs": Metric(True, "Captured draft graphs."),
    "graph_memory_bytes": Metric(True, "Device memory of the captured draft graphs."),
    "withdrawn": Metric(True, "Whether the draft graphs were withdrawn: 1, else 0."),
    "events": Metric(False, "What else features count, by name."),
    "unreadable": Metric(True, "Whether this scrape could not read the processes: 1, else 0."),
}

#: A metric that only its feature describes.
OTHER = Metric(False, "A number of a feature.")


class MetricSample(NamedTuple):
    """One value of a metric.

    :ivar metric: without prefix and suffix.
    """

    metric: str
    labels: dict[str, str]
    value: float
    gauge: bool


def of_this_server() -> list[MetricSample]:
    """The values of all metrics for the processes of the server that this process belongs to."""
    return list(samples(family(os.getpid())))


def samples(members: Iterable[Member]) -> Iterator[MetricSample]:
    """The values of all metrics for the processes of a server.

    No two of them have the same metric and labels: each process has a pid of its own.
    """
    for member in members:
        record = member.record
        own = {
            "process": printable(record.role),
            "rank": "" if record.rank is None else str(record.rank),
            "pid": str(record.pid),
        }
        yield _info(member, own)
        reason = {"reason": printable(member.problem or "")}
        yield MetricSample(
            "attention", {**own, **reason}, int(member.problem is not None), gauge=True
        )
        for effect in record.effects:
            for state in Effect:
                labels = {"feature": printable(effect.feature), "state": state.value, **own}
                yield MetricSample("feature_state", labels, int(effect.state is state), gauge=True)
        yield from _numbers(member.numbers, own)


def _info(member: Member, own: dict[str, str]) -> MetricSample:
    record = member.record
    labels = {
        **own,
        "digest": printable(record.digest[:12]),
        "vllm": printable(record.vllm),
        "way": record.way.value,
        "patched": "true" if record.way.patched else "false",
        "features": printable(",".join(sorted(effect.feature for effect in record.effects))),
    }
    return MetricSample("info", labels, 1, gauge=True)


def _numbers(numbers: Iterable[Number], own: dict[str, str]) -> Iterator[MetricSample]:
    """A sample for each number; those that would be one sample are added up."""
    totals: Counter[tuple[str, tuple[tuple[str, str], ...], bool]] = Counter()
    for each in numbers:
        meaning = each.meaning
        if meaning is None or not _is_metric(meaning):
            meaning = Meaning("events", (("event", each.name),))
        labels = {
            **{name: printable(value) for name, value in meaning.labels},
            "feature": printable(each.feature),
            **own,
        }
        totals[meaning.metric, tuple(sorted(labels.items())), meaning.gauge] += each.number
    for (metric, pairs, gauge), number in totals.items():
        yield MetricSample(metric, dict(pairs), number, gauge)


def _is_metric(meaning: Meaning) -> bool:
    """Whether a meaning, which a stranger may have written, can be shown as a metric."""
    names = [name for name, _ in meaning.labels]
    shipped = METRICS.get(meaning.metric)
    return (
        meaning.metric not in _RESERVED
        and (shipped is None or shipped.gauge == meaning.gauge)
        and len(set(names)) == len(names)
        and not set(names) & {*_OWN}
        and all(_WORD.fullmatch(name) for name in (meaning.metric, *names))
    )


class Statistics:
    """The line of the overlay beside vLLM's statistics: what was counted since the last one."""

    def __init__(self) -> None:
        self._last: Counter[tuple[int, str, str]] = Counter()

    def text(self, members: Iterable[Member] | None = None) -> str:
        """What was counted since the last call, such as ``draft-graphs: replays of loop 12``.

        :param members: the processes; default: those of this server.
        """
        now: Counter[tuple[int, str, str]] = Counter()
        for member in family(os.getpid()) if members is None else members:
            for each in member.numbers:
                if each.meaning is None or not each.meaning.gauge:
                    now[member.record.pid, each.feature, each.name] = each.number
        news: dict[str, Counter[str]] = {}
        for (pid, feature, name), number in now.items():
            more = number - self._last[pid, feature, name]
            if more > 0:
                news.setdefault(feature, Counter())[name] += more
        self._last = now
        return "; ".join(
            f"{feature}: {', '.join(f'{name} {number}' for name, number in counts.items())}"
            for feature, counts in news.items()
        )
