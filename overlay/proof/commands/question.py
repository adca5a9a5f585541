"""What the user of ``overlay bench`` asked, what follows for the engines, and the time they have.

The most telling figures come first: the step times of stock and of the overlay, with the smallest
number of requests before larger ones, then those of other engines, then servers.  What the budget
no longer allows is left out, in the first round as in later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from overlay.proof.commands.bench_report import DEFAULT, OVERLAY, OVERLAY_V1, PLAIN, STOCK, V2
from overlay.proof.repeats import order
from overlay.proof.shapes import EAGLE3
from overlay.report.lines import count, enumeration
from overlay.untrusted import parse_json, read_regular

#: Seconds for all engines of a comparison together, where the user names none.
BUDGET = 1800.0

#: The last seconds of a budget, in which an engine only ends what it is measuring; and their share
#: of a small budget, at most.
LAST, LAST_SHARE = 30.0, 0.1
ENGINES = (STOCK, OVERLAY, V2)
#: What is measured, in the order of the first round, by the word that the user gives; and the
#: engine without which there is nothing to compare.
AGAINST = {
    "default": (DEFAULT, OVERLAY),
    "both": ENGINES,
    "stock": (STOCK, OVERLAY),
    "v2": (OVERLAY, V2),
}
REFERENCES = {"default": DEFAULT, "both": STOCK, "stock": STOCK, "v2": V2}


class Part(Enum):
    """What is measured of an engine; each in a process of its own.

    A server's engine and its API run in processes of their own; an engine step is timed in the one
    process of ``vllm.LLM``, without both.  So the two parts cannot share the start of an engine.
    """

    STEPS = "steps"
    SERVING = "serving"

    @property
    def words(self) -> str:
        """What is measured, in words."""
        return {Part.STEPS: "step times", Part.SERVING: "servers"}[self]


class Start(NamedTuple):
    """One start of an engine; :ivar number: of the round, from 0 on."""

    part: Part
    engine: str
    number: int


class Schedule(NamedTuple):
    """The engines that ``bench`` means to start.

    :ivar parts: in the order in which they are measured; :ivar rounds: how many there are.
    :ivar budget: seconds for all of them.
    :ivar engines: in the order of the first round.
    """

    parts: tuple[Part, ...]
    rounds: int
    budget: float
    engines: tuple[str, ...] = ENGINES

    def round(self, number: int) -> tuple[Start, ...]:
        """The starts of a round, counted from 0, in their order."""
        engines = order(self.engines, number)
        return tuple(Start(part, engine, number) for part in self.parts for engine in engines)

    @property
    def text(self) -> str:
        """The schedule as one sentence, for whoever waits."""
        rounds, starts = count(self.rounds, "round"), count(len(self.round(0)), "engine start")
        each = (f"{part.words} of {enumeration(self.engines)}" for part in self.parts)
        return (
            f"bench: at most {rounds} of {starts}, first {', then '.join(each)}; what does not fit "
            f"into --budget {self.budget:g} s is left out"
        )


class Budget:
    """The time of all engines together, at whose end none runs.

    :param seconds: how long they may take.
    :param clock: seconds, for tests.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = min(LAST, LAST_SHARE * seconds)
        self._began = clock()
        self._starts: dict[Part, float] = {}

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    @property
    def remaining(self) -> float:
        """Seconds in which something may still begin, 0 at least."""
        return max(0.0, self._seconds - self._last - self.spent)

    def until_killed(self, deadline: float) -> float:
        """Seconds after which an engine that starts now is killed.

        :param deadline: seconds that any engine may take.
        """
        return min(deadline, max(0.0, self._seconds - self.spent))

    def note_start(self, part: Part, seconds: float) -> None:
        """Note how long an engine took until it could be measured."""
        self._starts[part] = min(seconds, self._starts.get(part, seconds))

    def allows(self, part: Part) -> bool:
        """Whether an engine can be measured in what is left, by the quickest start so far."""
        return self.remaining > self._starts.get(part, 0.0)


@dataclass(frozen=True)
class BenchQuestion:
    """What the user asked.

    :ivar shape: one of ``proof.shapes.SHAPES``, with dummy weights; unused with ``model``.
    :ivar model: a model to be measured; ``None`` for a shape.
    :ivar draft: its draft; ``None`` where the engine arguments name it.
    :ivar method: vLLM's name for the kind of draft; ``None``: as the draft's configuration says.
    :ivar arguments: further arguments of vLLM's engine.
    :ivar batches: numbers of requests at a time, for step times.
    :ivar concurrency: the same for a server.
    :ivar prompt: tokens of a prompt; :ivar answer: of an answer; both of a server's requests.
    :ivar rate: requests a second while the time to first token is taken; see ``ServingSpec``.
    :ivar rounds: how often each engine is measured; :ivar repeats: of each batch and round.
    :ivar budget: seconds for all engines together; see ``budget``.
    :ivar accept: the mean number of tokens a step, by synthetic acceptance; 0: what the models
        accept; ``None``: 2.5 for a shape, 0 for models.
    :ivar mode: cudagraph mode of a shape's engines; ``None``: as vLLM, or the overlay, chooses.
    :ivar port: of the server; ``None`` for a free one.
    :ivar only: the one part that is measured; ``None`` for both.
    :ivar against: what the overlay is measured beside, a key of ``AGAINST``.
    :ivar v1: whether stock V1 and the overlay on V1 are measured as well.
    :ivar drafts: ``with``, ``without`` or ``both``.
    :ivar prompts: a file with a prompt on each line, for a model; ``None``: texts at hand.
    :ivar page: a file for the page of HTML; :ivar plot: one for the plots as SVG.
    """

    shape: str = "1b"
    model: str | None = None
    draft: str | None = None
    method: str | None = None
    arguments: tuple[str, ...] = ()
    k: int = 3
    batches: tuple[int, ...] = (1, 8, 32)
    concurrency: tuple[int, ...] = (1, 16, 64)
    prompt: int = 512
    answer: int = 256
    rate: float | None = None
    port: int | None = None
    rounds: int = 3
    repeats: int = 5
    budget: float = BUDGET
    tokens: int = 192
    accept: float | None = None
    engine: str = "{}"
    mode: str | None = None
    only: Part | None = None
    against: str = "default"
    v1: bool = False
    drafts: str = "with"
    prompts: Path | None = None
    python: str | None = None
    deadline: float = 600.0
    page: Path | None = None
    plot: Path | None = None
    logs: Path | None = None

    @property
    def schedule(self) -> Schedule:
        """The engines that are to be started, one after the other."""
        parts = tuple(Part) if self.only is None else (self.only,)
        return Schedule(parts, self.rounds, self.budget, engines=self.engines)

    @property
    def engines(self) -> tuple[str, ...]:
        """The overlay and what it is measured against."""
        engines = (*AGAINST[self.against], *((STOCK, OVERLAY_V1) if self.v1 else ()))
        plain = tuple(f"{each}{PLAIN}" for each in engines)
        return {"with": engines, "without": plain, "both": (*engines, *plain)}[self.drafts]

    @property
    def reference(self) -> str:
        """The engine without whose figures there is nothing to compare."""
        return f"{REFERENCES[self.against]}{PLAIN if self.drafts == 'without' else ''}"

    @property
    def overlay(self) -> str:
        """The overlay's engine that is compared with it."""
        return f"{OVERLAY}{PLAIN if self.drafts == 'without' else ''}"

    def runner_of(self, engine: str) -> str | None:
        """The value of ``VLLM_USE_V2_MODEL_RUNNER``; ``None``: as the user has it, or unset.

        Unset, the release chooses the runner.
        """
        name = engine.removesuffix(PLAIN)
        if name == V2:
            return "1"
        forced = name in (STOCK, OVERLAY_V1) or (name == OVERLAY and self.against != "default")
        return "0" if forced else None

    @property
    def acceptance(self) -> float:
        """The mean number of tokens a step; 0: what the models accept."""
        if self.accept is None:
            return 2.5 if self.model is None else 0.0
        return self.accept

    @property
    def speculative(self) -> dict[str, Any] | None:
        """vLLM's ``speculative_config`` without the draft of a shape; ``None``: the user's own."""
        if self.model is not None and self.draft is None:
            return None
        config: dict[str, Any] = {"num_speculative_tokens": self.k}
        if self.model is None:
            config |= EAGLE3.speculative
        else:
            config["model"] = self.draft
            method = self.method or method_of(Path(str(self.draft)))
            config |= {} if method is None else {"method": method}
        if self.acceptance:
            config["rejection_sample_method"] = "synthetic"
            config["synthetic_acceptance_length"] = self.acceptance
        return config


#: Parts of an architecture's name -> vLLM's name for the kind of draft.
_METHODS = (
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("dflash", "dflash"),
    ("mtp", "mtp"),
    ("medusa", "medusa"),
)


def method_of(draft: Path) -> str | None:
    """vLLM's name for the kind of a draft in a folder; ``None`` where its configuration is silent.

    An id on the hub is silent here, too: vLLM itself knows most of these.
    """
    try:
        config = parse_json(read_regular(draft / "config.json") or b"null")
        name = str(config["architectures"][0]).lower()
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return next((method for part, method in _METHODS if part in name), None)
