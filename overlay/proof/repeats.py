"""What repeats of a measurement say, and what they do not; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from overlay.errors import OverlayError
from overlay.results import ModelRunner

_Engine = TypeVar("_Engine")
#: The package of model runner V2.
_V2 = "vllm.v1.worker.gpu."


class Sample(NamedTuple):
    """Repeats of one measurement.

    :ivar values: one for each repeat, of all rounds; the unit is that of whoever has the sample.
    :ivar rounds: how many of the values are of each round, in the order of the rounds.
    """

    values: tuple[float, ...]
    rounds: tuple[int, ...] = ()

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def repeated(self) -> bool:
        """Whether there are values whose range says something: two, at least."""
        return len(self.values) > 1

    def overlaps(self, other: Sample) -> bool:
        """Whether the two ranges have a value in common, so that nothing follows."""
        return min(self.values) <= max(other.values) and min(other.values) <= max(self.values)


class Timed(NamedTuple):
    """What one engine took.

    :ivar engine: its name; :ivar batches: by the number of requests.
    :ivar graphs: its draft graphs by role; empty where it has none.
    :ivar starts: seconds until it could be measured, of each start.
    :ivar runner: the module of its model runner; empty where it is not known.
    :ivar features: those that were active; ``None`` where it is not known.
    """

    engine: str
    vllm: str
    device: str
    batches: Mapping[int, Sample]
    graphs: Mapping[str, int]
    starts: tuple[float, ...] = ()
    runner: str = ""
    features: tuple[str, ...] | None = None

    @property
    def version(self) -> ModelRunner | None:
        """Its model runner; ``None`` where it is not known."""
        if not self.runner:
            return None
        return ModelRunner.V2 if self.runner.startswith(_V2) else ModelRunner.V1


class Quantity(Enum):
    """What can be measured of an engine; the value is its name in JSON."""

    STEP_TIME = "steps"
    THROUGHPUT = "serving"
    FIRST_TOKEN = "first-token"


class Gap(NamedTuple):
    """What of an engine was not measured, because the budget was spent.

    :ivar requests: the numbers of requests at a time; empty for the time to the first token.
    """

    engine: str
    what: Quantity
    requests: tuple[int, ...]


class Served(NamedTuple):
    """What one engine served, with vLLM's own client.

    :ivar concurrency: output tokens a second by the number of requests at a time: the last two
        runs of each start.
    :ivar unsteady: the numbers of requests at which two runs in a row never agreed.
    :ivar rate: requests a second while the time to first token was taken; ``None``: it was not.
    :ivar first_token: milliseconds to the first token, the median of each run.
    :ivar acceptance: tokens a step; ``None`` where nothing was drafted.
    :ivar starts: seconds until it answered, of each start.
    :ivar accepted: the share of verifications that accepted each position; of the last start.
    """

    engine: str
    vllm: str
    concurrency: Mapping[int, Sample]
    unsteady: tuple[int, ...]
    rate: float | None
    first_token: Sample | None
    acceptance: float | None
    starts: tuple[float, ...] = ()
    accepted: tuple[float, ...] = ()


def order(engines: Sequence[_Engine], round_: int) -> tuple[_Engine, ...]:
    """The order of the engines in a round, from 0 on: each begins in turn."""
    first = round_ % len(engines)
    return (*engines[first:], *engines[:first])


def read(engine: str, results: Sequence[Mapping[str, Any]]) -> Timed:
    """Join what ``step_time`` wrote of an engine, in one result for each start.

    :raises OverlayError: if it is malformed.
    """
    batches: dict[int, Sample] = {}
    with _document(f"{engine}: expected the result of a timed engine"):
        for result in results:
            for name, figures in result.items():
                if name.startswith("batch"):
                    _add(batches, int(name.removeprefix("batch")), figures["repeats_ms_per_step"])
        last = results[-1]
        graphs = {str(k): int(v) for k, v in (last["draft_graphs"] or {"keys": {}})["keys"].items()}
        sizes = dict(sorted(batches.items()))
        about = str(last["vllm"]), str(last["gpu"])
        runner = str(last.get("runner") or "")
        features = None if "features" not in last else tuple(map(str, last["features"]))
        return Timed(engine, *about, sizes, graphs, _starts(results), runner, features)


def read_served(engine: str, results: Sequence[Mapping[str, Any]]) -> Served:
    """Join what ``serving`` wrote of an engine, in one result for each start.

    :raises OverlayError: if it is malformed.
    """
    cells: dict[int, Sample] = {}
    unsteady, first = set[int](), dict[int, Sample]()
    rate: float | None = None
    with _document(f"{engine}: expected the result of a server"):
        for result in results:
            for name, cell in result["concurrency"].items():
                _add(cells, int(name), cell["values"])
                unsteady |= set() if cell["agreed"] else {int(name)}
            at_rate = result["first_token"]
            if at_rate is not None:
                rate = float(at_rate["rate"])
                _add(first, 0, at_rate["values"])
        last = results[-1]
        return Served(
            engine,
            str(last["vllm"]),
            dict(sorted(cells.items())),
            tuple(sorted(unsteady)),
            rate,
            first.get(0) if first.get(0, Sample(())).values else None,
            None if last["acceptance"] is None else float(last["acceptance"]),
            _starts(results),
            tuple(map(float, last.get("accepted") or ())),
        )


@contextmanager
def _document(expected: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise OverlayError(f"{expected}, found another document ({error!r})") from error


def _add(samples: dict[int, Sample], size: int, repeats: Sequence[float]) -> None:
    """Add the repeats of one start, which is a round."""
    values = tuple(map(float, repeats))
    before = samples.get(size, Sample(()))
    samples[size] = Sample((*before.values, *values), (*before.rounds, len(values)))


def _starts(results: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    return tuple(float(result["start_s"]) for result in results if "start_s" in result)
