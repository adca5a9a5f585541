"""Compare what an engine serves with the overlay, or draft graphs, and without; pure.

A run of an engine is data (:class:`EngineRun`), read from what ``verify_engine`` wrote.  Two runs
of the same prompts are compared request by request: their tokens, and how many drafts each engine
step accepted.  Where the answer is known beforehand (``oracle``), a run is compared with that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from overlay.errors import OverlayError
from overlay.proof import oracle
from overlay.proof.engine_compat import GraphMode
from overlay.proof.oracle import Answer, EngineRequest, OracleStep, Rule
from overlay.proof.rounding import Opinion, Rounding
from overlay.report import plain
from overlay.results import ModelRunner


class RankFacts(NamedTuple):
    """What draft-graphs did on one rank.

    :ivar state: ``active`` or ``idle``; ``None`` where the feature reported nothing.
    :ivar text: what is active, or why it is idle.
    :ivar captured: the number of captured graphs, by role.
    :ivar replayed: the number of replays while the requests were served, by role.
    :ivar left: the other counts while they were served, such as batches left to upstream, by text.
    """

    rank: int
    state: str | None
    text: str
    captured: Mapping[str, int]
    replayed: Mapping[str, int]
    left: Mapping[str, int]


class FeatureFacts(NamedTuple):
    """What a feature reported in an engine's processes.

    :ivar state: ``active`` where it is anywhere, or ``idle``; ``None`` where it did not say.
    :ivar text: what is active, or why it is idle.
    :ivar counts: what it counted while the requests were served, by text.
    :ivar mends: whether it mends a fault, and stands by until that is met.
    """

    state: str | None
    text: str
    counts: Mapping[str, int]
    mends: bool

    @property
    def used(self) -> bool:
        """Whether it had an effect while the requests were served."""
        return self.state == "active" and (bool(self.counts) or not self.mends)


class EngineRun(NamedTuple):
    """One engine that served all requests.

    :ivar device: the name of the device; :ivar root: the folder that holds the vLLM package.
    :ivar k: draft tokens a step.
    :ivar one_pass: whether all drafts of a step come from one pass of the draft model.
    :ivar start_s: seconds until the engine was ready; :ivar serve_s: until all were served.
    :ivar runner: its model runner; ``None`` where that is not known.
    :ivar features: what each feature reported, by id; empty where none is there.
    :ivar opinions: what it thinks of the tokens at which other runs part; see ``rounding``.
    """

    vllm: str
    root: str
    device: str
    k: int
    one_pass: bool
    served: tuple[Answer, ...]
    ranks: tuple[RankFacts, ...]
    start_s: float
    serve_s: float
    runner: ModelRunner | None = None
    features: Mapping[str, FeatureFacts] = MappingProxyType({})
    opinions: tuple[Opinion, ...] = ()

    @property
    def effective(self) -> tuple[str, ...]:
        """The features that had an effect."""
        return tuple(sorted(name for name, facts in self.features.items() if facts.used))

    @property
    def replays(self) -> int:
        """Replays on the rank that has the fewest."""
        return min((sum(rank.replayed.values()) for rank in self.ranks), default=0)

    @property
    def accepted(self) -> tuple[float, ...]:
        """The share of verifications that accepted each draft position, from the first on."""
        steps = [step for each in self.served for step in each.steps]
        counts = oracle.count_steps(steps, self.k)
        return tuple(times / max(counts.drafts, 1) for times in counts.per_position)

    @property
    def modes(self) -> tuple[GraphMode, ...]:
        """The modes with graphs that differ for this configuration."""
        return (GraphMode.WHOLE,) if self.one_pass else (GraphMode.STEP, GraphMode.LOOP)

    def plain(self) -> dict[str, Any]:
        """What JSON says of it."""
        return {
            "vllm": self.vllm,
            "root": self.root,
            "device": self.device,
            "k": self.k,
            "requests": len(self.served),
            "tokens": sum(len(each.tokens) for each in self.served),
            "accepted": [round(share, 4) for share in self.accepted],
            "ranks": plain(self.ranks),
            "start_s": self.start_s,
            "serve_s": self.serve_s,
            "runner": plain(self.runner),
            "features": plain(self.features),
        }

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> EngineRun:
        """Read what ``verify_engine`` wrote.

        :raises OverlayError: if it is malformed.
        """
        try:
            return cls(
                vllm=str(data["vllm"]),
                root=str(data["root"]),
                device=str(data["device"]),
                k=int(data["k"]),
                one_pass=bool(data["one_pass"]),
                served=tuple(_answer(each) for each in data["served"]),
                ranks=tuple(_rank(each) for each in data["ranks"]),
                start_s=float(data["start_s"]),
                serve_s=float(data["serve_s"]),
                runner=None if data["runner"] is None else ModelRunner(data["runner"]),
                features={str(id_): _feature(each) for id_, each in data["features"].items()},
                opinions=tuple(_opinion(each) for each in data["opinions"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OverlayError(
                f"expected the result of an engine run, found another document ({error!r}): the "
                "overlay that the engine's Python imports may be another version; "
                "`overlay doctor` shows which"
            ) from error


def _answer(data: Mapping[str, Any]) -> Answer:
    steps = tuple(OracleStep(*map(int, step)) for step in data["steps"])
    return Answer(int(data["prompt"]), tuple(map(int, data["tokens"])), steps)


def _rank(data: Mapping[str, Any]) -> RankFacts:
    names = ("captured", "replayed", "left")
    return RankFacts(int(data["rank"]), *_report(data), *(_counts(data[name]) for name in names))


def _feature(data: Mapping[str, Any]) -> FeatureFacts:
    return FeatureFacts(*_report(data), _counts(data["counts"]), bool(data["mends"]))


def _report(data: Mapping[str, Any]) -> tuple[str | None, str]:
    state = data["state"]
    return None if state is None else str(state), str(data["text"])


def _counts(data: Mapping[str, Any]) -> dict[str, int]:
    return {str(key): int(value) for key, value in data.items()}


def _opinion(data: Sequence[Any]) -> Opinion:
    first, second = (None if each is None else float(each) for each in data)
    return first, second


class DifferenceKind(str, Enum):
    """What of a request differs."""

    TOKEN = "token"
    ACCEPTED = "accepted drafts"


class Difference(NamedTuple):
    """The first place where a run is not as expected.

    :ivar request: its number, from 0 on.
    :ivar position: how many tokens of the answer come before it.
    :ivar expected: the token id, or the number of accepted drafts; :ivar found: the same of the
        run.  ``None`` where there is none: one answer is shorter than the other.
    """

    request: int
    position: int
    kind: DifferenceKind
    expected: int | None
    found: int | None

    @property
    def text(self) -> str:
        """The difference as a phrase."""
        what = "token" if self.kind is DifferenceKind.TOKEN else "accepted drafts"
        expected = "none" if self.expected is None else self.expected
        actual = "none" if self.found is None else self.found
        return (
            f"request {self.request}, position {self.position}: expected {what} {expected}, "
            f"found {actual}"
        )


def first_difference(expected: Sequence[Answer], actual: Sequence[Answer]) -> Difference | None:
    """The first request, and in it the first position, where two runs of the same prompts differ.

    Accepted drafts are compared at each number of known tokens at which both runs verified drafts,
    so that two runs that batched the same work differently compare equal.  Where one run drafted
    fewer there, near a length limit, only those are compared.
    """
    for number, (reference, served) in enumerate(zip(expected, actual, strict=True)):
        differences = [*_tokens(number, reference, served), *_accepted(number, reference, served)]
        if differences:
            return min(differences, key=lambda each: each.position)
    return None


def _tokens(number: int, reference: Answer, served: Answer) -> Iterator[Difference]:
    length = max(len(reference.tokens), len(served.tokens))
    for position in range(length):
        wanted_token = reference.tokens[position] if position < len(reference.tokens) else None
        right = served.tokens[position] if position < len(served.tokens) else None
        if wanted_token != right:
            yield Difference(number, position, DifferenceKind.TOKEN, wanted_token, right)
            return


def _accepted(number: int, reference: Answer, served: Answer) -> Iterator[Difference]:
    before = {step.known: step for step in reference.steps}
    for step in served.steps:
        match = before.get(step.known)
        if match is None:
            continue
        most = min(step.drafted, match.drafted)
        expected, actual = min(match.accepted, most), min(step.accepted, most)
        if expected != actual:
            yield Difference(
                number, step.known - served.prompt, DifferenceKind.ACCEPTED, expected, actual
            )
            return


def leaves_answer(
    rule: Rule, requests: Sequence[EngineRequest], actual: Sequence[Answer]
) -> Difference | None:
    """The first place where a run is not what the rule of the models gives beforehand."""
    return first_difference(
        [
            known_answer(rule, request, served)
            for request, served in zip(requests, actual, strict=True)
        ],
        actual,
    )


def known_answer(rule: Rule, request: EngineRequest, served: Answer) -> Answer:
    """What a request must get: the rule's tokens, and at each of its steps the rule's drafts."""
    prompt = list(request.prompt)
    text = prompt + oracle.continuation(rule, prompt, request.tokens)
    steps = tuple(
        OracleStep(
            step.known, step.drafted, oracle.accepted(rule, text[: step.known], step.drafted)
        )
        for step in served.steps
    )
    return Answer(len(prompt), tuple(text[len(prompt) :]), steps)


class ModeOutcome(str, Enum):
    """What became of one mode."""

    #: The engine without graphs, which the others are compared with.
    REFERENCE = "reference"
    SAME = "same"
    #: It differs only where two tokens are as good as equally likely, as other kernels round.
    ROUNDS = "same but for rounding"
    DIFFERS = "differs"
    #: It differs, and so does the engine without graphs from itself.
    UNSTEADY = "unsteady"
    #: No graph was replayed, or no feature was used, so that nothing was compared.
    IDLE = "idle"
    DIED = "died"
    #: It is as it must be, on a device that has no graphs.
    WITHOUT_GRAPHS = "without graphs"

    @property
    def right(self) -> bool:
        """Whether it needs nobody."""
        return self in (
            ModeOutcome.REFERENCE,
            ModeOutcome.SAME,
            ModeOutcome.ROUNDS,
            ModeOutcome.WITHOUT_GRAPHS,
        )


@dataclass(frozen=True)
class ModeResult:
    """What became of one mode of one set of models.

    :ivar models: the name of the set; empty where there is one.
    :ivar against: what it was compared with, in words.
    :ivar failure: why the engine died, in lines.
    :ivar run: ``None`` where the engine died.
    :ivar rounding: where and how it differs from stock, where that was looked into.
    """

    models: str
    mode: GraphMode
    outcome: ModeOutcome
    against: str | None = None
    difference: Difference | None = None
    failure: str | None = None
    run: EngineRun | None = None
    rounding: Rounding | None = None

    @property
    def title(self) -> str:
        """The mode with its models, for people."""
        return f"{self.models} {self.mode.shown}".strip()

    @property
    def without_own_graph(self) -> bool:
        """Whether a rank replayed graphs, but none of the role that the mode is named after.

        Draft graphs fall back from a loop to steps, and from these to first passes alone.
        """
        if self.run is None or not self.mode.has_graphs:
            return False
        return any(not rank.replayed.get(self.mode.shown, 0) for rank in self.run.ranks)


def judged(
    models: str,
    mode: GraphMode,
    run: EngineRun,
    reference: EngineRun | None,
    answer: tuple[Rule, Sequence[EngineRequest]] | None,
) -> ModeResult:
    """Compare a run in a mode with the known answer, or else with the run without graphs.

    A reference that leaves the known answer itself, as upstream's drafts may, takes its place.
    """
    difference, against = _compare(mode, run, reference, answer)
    if difference is not None:
        outcome = ModeOutcome.DIFFERS
    elif mode.measure:
        outcome = ModeOutcome.REFERENCE
    else:
        used = run.effective if mode is GraphMode.OVERLAY else run.replays
        outcome = ModeOutcome.SAME if used else ModeOutcome.IDLE
    return ModeResult(models, mode, outcome, against or None, difference, run=run)


def without_graphs(result: ModeResult) -> ModeResult:
    """A result on a device that has no graphs: there it is right that none was replayed."""
    idle = result.outcome is ModeOutcome.IDLE
    return replace(result, outcome=ModeOutcome.WITHOUT_GRAPHS) if idle else result


def _compare(
    mode: GraphMode,
    run: EngineRun,
    reference: EngineRun | None,
    answer: tuple[Rule, Sequence[EngineRequest]] | None,
) -> tuple[Difference | None, str]:
    if answer is not None:
        difference = leaves_answer(*answer, run.served)
        usable = reference is None or leaves_answer(*answer, reference.served) is None
        if difference is None or usable:
            return difference, "the known answer"
    if reference is None or reference is run:
        return None, ""
    stock = mode is GraphMode.OVERLAY
    against = "stock" if stock else "the engine without draft graphs"
    return first_difference(reference.served, run.served), against
