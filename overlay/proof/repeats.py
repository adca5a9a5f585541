"""What repeats of a measurement say, and what they do not; pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from overlay.errors import OverlayError


class Sample(NamedTuple):
    """Repeats of one measurement.

    :ivar values: one for each repeat, of all rounds; the unit is that of whoever has the sample.
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


class Quantity(str, Enum):
    """What can be measured of an engine."""

    STEPS = "steps"
    SERVING = "serving"
    FIRST_TOKEN = "first-token"


class Gap(NamedTuple):
    """What of an engine was not measured, because the budget was spent.

    :ivar requests: the numbers of requests at a time; empty for the time to the first token.
    """

    engine: str
    quantity: Quantity
    requests: tuple[int, ...]


class Served(NamedTuple):
    """What one engine served, with vLLM's own client.

    :ivar concurrency: output tokens a second by the number of requests at a time: the last two
        runs of each round.
    :ivar unsteady: the numbers of requests at which these two did not agree in every round.
    :ivar rate: requests a second while the time to first token was taken; ``None``: it was not.
    :ivar first_token: milliseconds to the first token, the median of each run.
    :ivar acceptance: tokens a step; ``None`` where nothing was drafted.
    """

    engine: str
    vllm: str
    concurrency: Mapping[int, Sample]
    unsteady: tuple[int, ...]
    rate: float | None
    first_token: Sample | None
    acceptance: float | None


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


def read_served(engine: str, rounds: Sequence[Mapping[str, Any]]) -> Served:
    """Join what ``serving`` wrote of an engine in several rounds.

    :raises OverlayError: if it is malformed.
    """
    joined: dict[int, tuple[float, ...]] = {}
    unsteady, first = set[int](), list[float]()
    rate: float | None = None
    try:
        for result in rounds:
            for name, cell in result["concurrency"].items():
                size = int(name)
                joined[size] = (*joined.get(size, ()), *map(float, cell["values"]))
                unsteady |= set() if cell["agreed"] else {size}
            if result["first_token"] is not None:
                rate = float(result["first_token"]["rate"])
                first += map(float, result["first_token"]["values"])
        last = rounds[-1]
        return Served(
            engine,
            str(last["vllm"]),
            {size: Sample(values) for size, values in sorted(joined.items())},
            tuple(sorted(unsteady)),
            rate,
            Sample(tuple(first)) if first else None,
            None if last["acceptance"] is None else float(last["acceptance"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise OverlayError(
            f"{engine}: expected the result of a server, found another document ({error!r})"
        ) from error
