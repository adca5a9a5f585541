"""The report of ``verify``: what each mode served, what its graphs did, and what differs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from overlay.proof.engine_compat import GraphMode
from overlay.proof.verification import ModeOutcome
from overlay.report import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, MARK, Line, Span, aligned, count, enumeration, labelled
from overlay.results import ModelRunner

if TYPE_CHECKING:
    from overlay.proof.rounding import Rounding
    from overlay.proof.verification import EngineRun, ModeResult, RankFacts

_HEAD = ("mode", "result", "accepted by position", "captured", "replayed", "start", "serve")


@dataclass(frozen=True)
class VerifyReport(Report):
    """What became of each mode.

    :ivar check: whether the address check was on.
    :ivar model_runner: the one that the command asked vLLM for; ``None`` where it did not.
    :ivar modes: in the order in which they were compared.
    """

    _command: ClassVar[str] = "verify"
    _key = "verify"
    check: bool
    model_runner: ModelRunner | None
    modes: tuple[ModeResult, ...]

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """A table, and below it what was left to upstream and what differs."""
        run = next((result.run for result in self.modes if result.run is not None), None)
        if run is not None:
            checked = ", address check on" if self.check else ""
            yield Line((Span(f"vLLM {run.vllm}", "heading"), Span(f" in {run.root}")))
            requests, tokens = len(run.served), sum(len(each.tokens) for each in run.served)
            text = f"{run.device}; {count(requests, 'request')}, {count(tokens, 'token')}{checked}"
            yield labelled(2, "", text)
            if self.model_runner is not None:
                text = f"model runner {self.model_runner.name}, which this command asked vLLM for"
                yield labelled(2, "", f"{text}; draft graphs do nothing where yours is another")
            elif run.runner is not None:
                yield labelled(2, "", f"model runner {run.runner.name}")
            yield BLANK
        yield from _table(self.modes)
        for result in self.modes:
            yield from _explained(result, verbose=verbose)


def verified(results: Sequence[ModeResult], asked: Collection[GraphMode] = ()) -> Verdict:
    """The verdict of ``verify``: about the worst of the modes, the first of these.

    :param asked: the modes that the user named; one that fell back to another was not verified.
    """
    for outcome, code in (
        (ModeOutcome.DIFFERS, Code.DRAFTS_DIFFER),
        (ModeOutcome.DIED, Code.ENGINE_DIED),
        (ModeOutcome.UNSTEADY, Code.NOT_VERIFIED),
        (ModeOutcome.IDLE, Code.NOT_VERIFIED),
    ):
        for result in results:
            if result.outcome is outcome:
                return Verdict(code, _bad(result))
    for result in results:
        if result.mode in asked and result.without_own_graph:
            return Verdict(Code.NOT_VERIFIED, _fell_back(result))
    whole = [result for result in results if result.mode is GraphMode.OVERLAY]
    if whole:
        return Verdict(Code.VERIFIED, _whole(whole))
    alike = (ModeOutcome.SAME, ModeOutcome.ROUNDS)
    modes = [_tried(result) for result in results if result.outcome in alike]
    if plain := [each.models for each in results if each.outcome is ModeOutcome.WITHOUT_GRAPHS]:
        text = (
            f"No draft graphs on a CPU: with the patches {enumeration(plain)} gave the tokens and "
            "the accepted drafts that they must; what graphs do needs a GPU and was not compared."
        )
        return Verdict(Code.WITHOUT_GRAPHS, text)
    if not modes:
        text = "No mode with draft graphs was run, so nothing was compared."
        return Verdict(Code.NOT_VERIFIED, text)
    same = "Draft graphs gave the tokens and the accepted drafts that they must"
    rounds = f", but for how kernels round: {text}" if (text := _rounded(results)) else ""
    return Verdict(Code.VERIFIED, f"{same}, in {enumeration(modes)}{rounds}.")


def _whole(results: Sequence[ModeResult]) -> str:
    """What the overlay was found to be beside stock."""
    features = sorted({name for each in results if each.run for name in each.run.effective})
    which = f"With {enumeration(features)} in use the overlay"
    if text := _rounded(results):
        return f"{which} differs from stock as kernels round: {text}."
    against = enumeration(sorted({each.against or "stock" for each in results}))
    return f"{which} gave the tokens and the accepted drafts of {against}."


def _rounded(results: Sequence[ModeResult]) -> str:
    """How those differ that only round otherwise, each way once; empty where none does."""
    rounds = (each for each in results if each.outcome is ModeOutcome.ROUNDS)
    return "; ".join(dict.fromkeys(_rounding(each.rounding) for each in rounds if each.rounding))


def _rounding(rounding: Rounding) -> str:
    """How a run differs from stock, as a phrase."""
    parts = []
    if (worst := rounding.worst) is not None:
        gap = "by more than can be told" if worst.apart is None else f"{worst.apart:.3f}"
        answers = count(len(rounding.partings), "answer")
        parts.append(
            f"{answers} part, where stock's log probabilities of the two tokens are at most {gap} "
            f"apart ({worst.text})"
        )
    parts.append(
        f"of {count(rounding.compared, 'verification')} of drafts {rounding.fewer} accepted fewer "
        f"and {rounding.more} more"
    )
    return "; ".join(parts)


def _tried(result: ModeResult) -> str:
    """The mode, and whether only graphs of other roles were tried in it."""
    if result.without_own_graph:
        return f"{result.title} (which replayed no {result.mode.shown} graph)"
    return result.title


def _fell_back(result: ModeResult) -> str:
    """Which mode was asked for, what ran in its place, and the feature's own account of it."""
    assert result.run is not None, "a mode that fell back has run"
    role = result.mode.shown
    rank = next(rank for rank in result.run.ranks if not rank.replayed.get(role, 0))
    ran = enumeration(sorted(role for role, times in rank.replayed.items() if times))
    return (
        f"{result.title} was asked for and replayed no {role} graph, only {ran}, so {role} was "
        f"not verified: {rank.text.rstrip('.') or 'draft-graphs reports nothing'}."
    )


def _bad(result: ModeResult) -> str:
    if result.outcome is ModeOutcome.DIFFERS and result.difference is not None:
        rounding = result.rounding
        why = "" if rounding is None else f"; rounding is no reason: {_rounding(rounding)}"
        return f"{result.title} differs from {result.against}: {result.difference.text}{why}."
    if result.outcome is ModeOutcome.UNSTEADY and result.difference is not None:
        stock = result.mode is GraphMode.OVERLAY
        measure = "stock" if stock else "without draft graphs the engine"
        return (
            f"{result.title} could not be compared: {measure} differs from itself "
            f"({result.difference.text}); try one request at a time "
            "(--max-num-seqs 1 behind --) or VLLM_BATCH_INVARIANT=1."
        )
    if result.outcome is ModeOutcome.DIED:
        return f"{result.title}: the engine died, where another one served; see above."
    if result.mode is GraphMode.OVERLAY:
        return f"No feature of the overlay was in use, so nothing was compared: {_idle(result)}."
    return f"{result.title} replayed no graph, so nothing was compared: {_reason(result)}."


def _idle(result: ModeResult) -> str:
    """Why no feature was used, as each reports it."""
    features = {} if result.run is None else result.run.features
    texts = [f"{name}: {facts.text or 'reports nothing'}" for name, facts in features.items()]
    return "; ".join(texts) or "none reports anything"


def _reason(result: ModeResult) -> str:
    """Why no graph was replayed, as the feature reports it."""
    if result.run is None:
        return "the engine died"
    for rank in result.run.ranks:
        if not sum(rank.replayed.values()):
            return rank.text.rstrip(".") or "draft-graphs reports nothing"
    return "no reason is known"


def _table(results: Sequence[ModeResult]) -> Iterator[Line]:
    rows: list[list[Span]] = [[Span(name, "heading") for name in _HEAD]]
    for result in results:
        style = "good" if result.outcome.right else "bad"
        cells = [Span(result.title), Span(result.outcome.value, style)]
        if result.run is not None:
            cells += [Span(text) for text in _figures(result.run)]
        rows.append(cells)
    yield from aligned(rows)
    yield BLANK


def _figures(run: EngineRun) -> tuple[str, ...]:
    first = run.ranks[0] if run.ranks else None
    return (
        " ".join(f"{share:.3f}" for share in run.accepted),
        _counts({} if first is None else first.captured),
        _counts({} if first is None else first.replayed),
        f"{run.start_s:.0f} s",
        f"{run.serve_s:.0f} s",
    )


def _counts(by_role: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {number}" for role, number in by_role.items()) or "none"


def _explained(result: ModeResult, *, verbose: bool) -> Iterator[Line]:
    """What the graphs of a mode did, what they left to upstream, and what is wrong."""
    if result.run is not None and result.mode is GraphMode.OVERLAY:
        yield from _feature_lines(result, result.run)
    elif result.run is not None and result.mode is not GraphMode.STOCK:
        ranks = result.run.ranks if verbose else result.run.ranks[:1]
        for rank in ranks:
            yield from _rank_lines(result, rank, verbose=verbose)
    if not result.outcome.right:
        first, *more = (result.failure or _bad(result)).splitlines()
        yield labelled(0, f"{MARK} {result.title}: ", first, "bad")
        yield from (labelled(4, "", text) for text in more)


def _feature_lines(result: ModeResult, run: EngineRun) -> Iterator[Line]:
    """What each feature did: those in use first."""
    silent = [name for name, facts in run.features.items() if facts.state is None]
    for name, facts in sorted(run.features.items(), key=lambda pair: not pair[1].used):
        if name not in silent:
            state = "stands by" if facts.state == "active" and not facts.used else facts.state
            yield labelled(0, f"{result.models} {name}: ".lstrip(), f"{state}: {facts.text}")
        for what, number in facts.counts.items():
            yield labelled(2, f"{number} ", what)
    if silent:
        yield labelled(0, f"{result.models} without effect: ".lstrip(), ", ".join(silent))


def _rank_lines(result: ModeResult, rank: RankFacts, *, verbose: bool) -> Iterator[Line]:
    name = f"{result.title}, rank {rank.rank}" if verbose else result.title
    state = rank.state or "reported nothing"
    yield labelled(0, f"{name}: ", f"{state}{': ' if rank.text else ''}{rank.text}")
    for text, number in rank.left.items():
        yield labelled(2, f"{number} ", text)
