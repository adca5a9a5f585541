"""What repeats of a measurement say, and what they do not; pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from overlay.errors import OverlayError


class Sample(NamedTuple):
    """Repeats of one measurement.

    :ivar values: milliseconds per engine step, one for each repeat, of all rounds.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def overlaps(self, other: Sample) -> bool:
        """Whether the two ranges have a value in common, so that nothing follows."""
        return min(self.values) <= max(other.values) and min(other.values) <= max(self.values)


class Timed(NamedTuple):
    """What one engine took.

    :ivar engine: its name; :ivar batches: by the number of requests.
    :ivar graphs: its draft graphs by role; empty where it has none.
    """

    engine: str
    vllm: str
    device: str
    batches: Mapping[int, Sample]
    graphs: Mapping[str, int]


def order(engines: Sequence[str], round_: int) -> tuple[str, ...]:
    """The order of the engines in a round, from 0 on: each begins in turn."""
    first = round_ % len(engines)
    return (*engines[first:], *engines[:first])


def read(engine: str, rounds: Sequence[Mapping[str, Any]]) -> Timed:
    """Join what ``step_time`` wrote of an engine in several rounds.

    :raises OverlayError: if it is malformed.
    """
    joined: dict[int, tuple[float, ...]] = {}
    try:
        for result in rounds:
            for name, figures in result.items():
                if name.startswith("batch"):
                    size = int(name.removeprefix("batch"))
                    values = tuple(map(float, figures["repeats_ms_per_step"]))
                    joined[size] = (*joined.get(size, ()), *values)
        last = rounds[-1]
        graphs = {str(k): int(v) for k, v in (last["draft_graphs"] or {"keys": {}})["keys"].items()}
        samples = {size: Sample(values) for size, values in sorted(joined.items())}
        return Timed(engine, str(last["vllm"]), str(last["gpu"]), samples, graphs)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise OverlayError(
            f"{engine}: expected the result of a timed engine, found another document ({error!r})"
        ) from error
