"""What two engines did with the same loads: equal, or the first thing that differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from overlay.proof.oracle import continuation, drafts
from tests.fuzz.loads import RULE

#: What is noted in a step, in the order in which it is compared: causes before effects.
STEPS = (
    *("refused", "reset", "reset running", "scheduled", "computed", "blocks", "preempted"),
    *("ended", "free", "cached", "rows", "verified", "drafts", "said"),
)
Outcome = Mapping[str, Any]
#: Of what a stock engine dies at the end of a context; a mended one must not.
CONTEXT_LIMIT = ("exceed the max model length", "could not broadcast input array")


#: How far the log probabilities of a prompt may lie apart where it is in another batch.
NEAR = 0.02


class Difference(NamedTuple):
    """The first thing that differs.

    :ivar load: number of the load; :ivar step: of it; None where an answer or the end differs.
    :ivar field: one of ``STEPS``, or a part of a request's answer, or ``error``.
    :ivar stock, other: the values; None for none.
    """

    load: int
    step: int | None
    field: str
    stock: Any
    other: Any

    def __str__(self) -> str:
        where = f"load {self.load}" + ("" if self.step is None else f", step {self.step}")
        values = (str(value)[:600] for value in (self.stock, self.other))
        return "{}: {}\n  stock: {}\n  other: {}".format(where, self.field, *values)


def same_step(expected: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last of the steps is as the step of that number of another engine."""
    number = len(steps) - 1
    return number < len(expected) and dict(expected[number]) == dict(steps[number])


def first_difference(stock: Sequence[Outcome], other: Sequence[Outcome]) -> Difference | None:
    """Compare the outcomes of loads; None where all is equal.

    Engines that end with the same error are equal up to there.
    """
    for number, (one, two) in enumerate(zip(stock, other, strict=False)):
        for step, (this, that) in enumerate(zip(one["steps"], two["steps"], strict=False)):
            for field in STEPS:
                if this.get(field) != that.get(field):
                    where = _first_place(this.get(field), that.get(field))
                    return Difference(number, step, field, *where)
        if one["error"] != two["error"]:
            return Difference(number, None, "error", one["error"], two["error"])
        lengths = len(one["steps"]), len(two["steps"])
        if lengths[0] != lengths[1]:
            return Difference(number, None, "steps", *lengths)
        for name in sorted({*one["answers"], *two["answers"]}):
            this, that = one["answers"].get(name) or {}, two["answers"].get(name) or {}
            for field in sorted({*this, *that}):
                if this.get(field) != that.get(field):
                    what = f"{field} of {name}"
                    return Difference(number, None, what, this.get(field), that.get(field))
    if len(stock) != len(other):
        return Difference(min(len(stock), len(other)), None, "loads", len(stock), len(other))
    return None


def _first_place(one: Any, other: Any) -> tuple[Any, Any]:
    """Of two lists of equal length, the first entries that differ; else both as they are."""
    while isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
        if not isinstance(pairs[0][0], list):
            break
        one, other = pairs[0]
    return one, other


def figures(outcomes: Sequence[Outcome]) -> Counter[str]:
    """Steps, requests with an answer and preemptions of an engine's loads."""
    count: Counter[str] = Counter()
    for outcome in outcomes:
        count["steps"] += len(outcome["steps"])
        count["requests"] += len(outcome["answers"])
        for step in outcome["steps"]:
            count["preemptions"] += len(step.get("preempted", ()))
    return count


class Least(NamedTuple):
    """How many tokens a request must have, and which ones it may not say before."""

    tokens: int
    stops: frozenset[int]

    def broken(self, tokens: Sequence[int], finish: str) -> bool:
        """Whether an answer is too short, or has such a token too early."""
        early = not self.stops.isdisjoint(tokens[: self.tokens])
        return early or (finish == "stop" and len(tokens) < self.tokens)


def first_other_answer(
    stock: Sequence[Outcome], mended: Sequence[Outcome], least: Mapping[str, Least]
) -> Difference | None:
    """The first death of a mended engine, or request that both answered otherwise.

    Its steps may be others, since more drafts are accepted; so a request that is aborted at a step,
    or begins behind a reset of the running ones, may have said more or less by then.

    :param least: of requests with min_tokens, where stock's answers are wrong.
    """
    for load, outcome in enumerate(mended):
        error, theirs = outcome["error"], stock[load]["error"] if load < len(stock) else None
        # What else a stock vLLM dies of is not mended.
        if error and (error != theirs or any(each in error for each in CONTEXT_LIMIT)):
            return Difference(load, None, "error", theirs, error)
    for load, (one, other) in enumerate(zip(stock, mended, strict=False)):
        refused = [_refused(outcome) for outcome in (one, other)]
        if not one["error"] and refused[0] != refused[1]:
            return Difference(load, None, "refused", *refused)
        for name in sorted(one["answers"].keys() & other["answers"].keys()):
            difference = _other_answer(one, other, name, least.get(name))
            if difference is not None:
                what, *values = difference
                return Difference(load, None, f"{what} of {name}", *values)
    return None


def _other_answer(
    one: Outcome, other: Outcome, name: str, least: Least | None
) -> tuple[str, Any, Any] | None:
    """What a request was answered otherwise, and both answers."""
    answer, beside = (outcome["answers"][name] for outcome in (one, other))
    if least is not None:
        for tokens, finish in zip(beside["tokens"], beside["finish"], strict=True):
            if least.broken(tokens, finish):
                return "min_tokens", least, tokens
        return None
    if "abort" in (*answer["finish"], *beside["finish"]):
        return None
    for key in ("tokens", "text", "finish", "stop"):
        if answer[key] != beside[key]:
            return key, answer[key], beside[key]
    prompts = [each.get("prompt logprobs") for each in (answer, beside)]
    # Who is preempted while the last step of its prompt is on its way has none.
    lost = any("preempted" in step for step in (*one["steps"], *other["steps"]))
    if _apart(*prompts) and not (lost and [None] in prompts):
        return "prompt logprobs", *prompts
    return None


def _refused(outcome: Outcome) -> list[Any]:
    """The requests that were refused, and why."""
    return [each for step in outcome["steps"] for each in step.get("refused", ())]


def _apart(one: Any, other: Any) -> bool:
    """Whether log probabilities of a prompt differ: [token, value, rank] of each place."""
    if not (one and other) or len(one) != len(other):
        return bool(one or other)
    for this, that in zip(one, other, strict=True):
        values = [{token: value for token, value, _ in place or ()} for place in (this, that)]
        # The likeliest tokens may be others where some are equally likely; the prompt's is in both.
        both = values[0].keys() & values[1].keys()
        if any(values) and not both:
            return True
        if any(abs(values[0][each] - values[1][each]) > NEAR for each in both):
            return True
    return False


def first_wrong_draft(
    outcomes: Sequence[Outcome], prompts: Mapping[str, Sequence[int]], k: int, limit: int
) -> Difference | None:
    """The first verification that accepts more or fewer drafts than the draft model has right.

    :param prompts: of requests that get what the target says by itself.
    :param k: most drafts of a step; :param limit: the drafter's context.  Who may come near to it
        with drafts that are not verified yet is left out, and who was not in the step before, which
        loses its drafts.
    """
    for load, outcome in enumerate(outcomes):
        present = [
            {name for batch in step.get("scheduled", ()) for name, *_ in batch}
            for step in outcome["steps"]
        ]
        for number, step in enumerate(outcome["steps"]):
            for name, known, drafted, accepted in step.get("verified", ()):
                answer = outcome["answers"].get(name)
                if name not in prompts or answer is None or known + 3 * (k + 1) > limit:
                    continue
                if not all(name in names for names in present[max(number - 2, 0) : number]):
                    continue
                tokens = [*prompts[name], *answer["tokens"][0]]
                true = continuation(RULE, tokens[:known], drafted)
                if tokens[known : known + drafted] != true[: len(tokens) - known]:
                    continue  # it was stopped from saying so
                pairs = zip(true, drafts(RULE, tokens[:known], drafted), strict=True)
                right = next((at for at, (one, two) in enumerate(pairs) if one != two), drafted)
                if known < len(tokens) and right != accepted:
                    return Difference(load, number, f"accepted of {name}", right, accepted)
    return None
