"""What a stock engine and a mended one did with the loads of ``mend_hooks``, judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.engine.mend_hooks import BAD, BIASED, LENGTH, LENGTHS, SHORT
from tests.engine.weight_hooks import WARNED

FULL = "Sampled token IDs exceed the max model length"
Outcome = Mapping[str, Any]


def context_limit(stock: Outcome, mended: Outcome) -> list[str]:
    """What is not as it must be: stock dies, the mended engine serves all to the end."""
    problems = []
    if not (stock["error"] or "").startswith(FULL):
        problems.append(f"stock does not have the fault: {stock['error']}")
    if mended["error"] is not None:
        problems.append(f"the mended engine died: {mended['error']}")
    lengths = {name: len(tokens) for name, tokens in mended["tokens"].items()}
    if lengths != {"a": LENGTH - 10, "b": LENGTH - 4}:
        problems.append(f"requests did not come to the end of the context: {lengths}")
    if not mended["counts"].get("rows whose count was ahead set right"):
        problems.append("nothing was set right")
    return problems


def overwritten_states(stock: Outcome, mended: Outcome) -> list[str]:
    """Stock's values change where the drafter writes over hidden states; mended ones do not."""
    problems = []
    right = stock["right"]["prompts"]["p"]
    if stock["overwritten"]["prompts"]["q"] == right:
        problems.append("stock does not have the fault")
    if not mended["right"]["prompts"]["p"] == mended["overwritten"]["prompts"]["q"] == right:
        problems.append("the mended engine's values are not right")
    return problems


#: Events behind which a stock engine's drafts are garbage.
LOST = ("documented", "draft_lost", "target_loaded")


def weights(stock: Outcome, mended: Outcome) -> list[str]:
    """Stock's drafts are garbage once its draft has slept; mended ones are as before."""
    theirs, ours = stock["rounds"], mended["rounds"]
    problems = [
        f"stock does not have the fault: {event}"
        for event in LOST
        if theirs[event]["steps"] == theirs["before"]["steps"]
    ]
    for event, outcome in ours.items():
        if outcome["error"]:
            problems.append(f"the mended engine died: {event}: {outcome['error']}")
        problems += [
            f"{what} are not those before: {event}"
            for what in ("tokens", "steps")
            if outcome[what] != ours["before"][what]
        ]
        if len(outcome["warnings"]) != (event in WARNED):
            problems.append(f"warnings: {event}: {outcome['warnings']}")
    return problems


REFUSED = "min_p and logit_bias sampling parameters are not yet supported"


def refused_parameters(stock: Outcome, mended: Outcome) -> list[str]:
    """Stock refuses; the mended engine gives the tokens that are left."""
    problems = [
        f"stock does not have the fault: {load}: {stock[load]['error']}"
        for load in ("biased", "least")
        if REFUSED not in (stock[load]["error"] or "")
    ]
    problems += [
        f"the mended engine has an error: {load}: {mended[load]['error']}"
        for load in ("plain", "biased", "least")
        if mended[load]["error"]
    ]
    if problems:
        return problems
    for name, bias in BIASED.items():
        tokens = mended["biased"]["tokens"][name]
        if set(tokens) != set(bias):
            problems.append(f"{name} has other tokens than its bias calls for: {tokens}")
    greedy, least = mended["plain"]["tokens"]["plain"], mended["least"]["tokens"]["least"]
    if least != greedy or len(set(greedy)) < 2:
        problems.append(f"min_p left other tokens than the likeliest: {least}, not {greedy}")
    return problems


def long_request(stock: Outcome, mended: Outcome) -> list[str]:
    """Stock accepts no draft beside the long request; the mended engine the same as without it."""

    def accepted(outcome: Outcome, name: str) -> list[int]:
        return [step[-1] for step in outcome["steps"][name]]

    problems = [
        f"{which} {load}: {outcome[load]['error']}"
        for which, outcome in (("stock", stock), ("mended", mended))
        for load in ("alone", "beside")
        if outcome[load]["error"]
    ]
    if problems:
        return problems
    for name in SHORT:
        if accepted(stock["beside"], name) == accepted(stock["alone"], name):
            problems.append(f"stock does not have the fault: {name}")
        if not sum(accepted(mended["alone"], name)):
            problems.append(f"nothing is accepted of {name}")
        if mended["beside"]["steps"][name] != mended["alone"]["steps"][name]:
            problems.append(
                f"drafts of {name} are not those without the long request: "
                f"{mended['beside']['steps'][name]}, not {mended['alone']['steps'][name]}"
            )
    if not sum(accepted(mended["beside"], "grows")) > sum(accepted(stock["beside"], "grows")):
        problems.append("what grows beyond the drafter's context has no drafts before")
    if mended["beside"]["tokens"] != stock["beside"]["tokens"]:
        problems.append("other tokens than stock's")
    if len(mended["warnings"]) != 1 or "gets no drafts" not in mended["warnings"][0]:
        problems.append(f"expected one line about it: {mended['warnings']}")
    if not mended["beside"]["counts"].get("steps that did not draft for all of their requests"):
        problems.append("the gate was never needed")
    return problems


def long_request_in_graphs(stock: Outcome, mended: Outcome) -> list[str]:
    """The same, and graphs were replayed."""
    problems = long_request(stock, mended)
    return problems if mended.get("replays") else [*problems, "no graph was replayed"]


def bad_input(stock: Outcome, mended: Outcome) -> list[str]:
    """Both refuse with the same words, and serve who was there as if nobody had asked."""
    problems = []
    for name in BAD:
        words = stock["refusals"].get(name)
        if words is None or mended["refusals"].get(name) != words:
            problems.append(f"{name}: {words}, and mended {mended['refusals'].get(name)}")
    for which, outcome in (("stock", stock), ("mended", mended)):
        if outcome["error"] or len(outcome["tokens"]) < 4:
            problems.append(f"{which}: {outcome['error']}, answered: {[*outcome['tokens']]}")
    return [
        *problems,
        *(f"{what} are not stock's" for what in ("tokens", "steps") if mended[what] != stock[what]),
    ]


def second_runner(stock: Outcome, mended: Outcome) -> list[str]:
    """V2 refuses with V1's words, and serves the others as the models' rule says.

    :param stock: V1's of ``bad_input``.
    """
    problems = [
        f"{what} are {mended[what].get(name)} of {name}, not {right}"
        for what in ("tokens", "steps")
        for name, right in mended["right"][what].items()
        if mended[what].get(name) != right
    ]
    if mended["refusals"] != stock["refusals"] or stock["refusals"].keys() != BAD.keys():
        problems.append(f"refused with other words: {mended['refusals']}")
    problems += [
        f"nothing is accepted of {name}"
        for name in LENGTHS
        if not any(accepted for *_, accepted in mended["steps"].get(name, []))
    ]
    return problems if mended["error"] is None else [*problems, mended["error"]]


def eager_draft(stock: Outcome, mended: Outcome) -> list[str]:
    """Stock's draft has graphs that nobody asked for; the mended engine's has none."""
    problems = []
    if not (stock["graphs"]["draft"] and stock["graphs"]["target"]):
        problems.append(f"stock does not have the fault: {stock['graphs']}")
    if mended["graphs"] != {**stock["graphs"], "draft": 0}:
        problems.append(f"the mended engine has other graphs: {mended['graphs']}")
    problems += [
        f"{what} are not stock's" for what in ("tokens", "steps") if mended[what] != stock[what]
    ]
    if mended["error"] is not None:
        problems.append(f"the mended engine died: {mended['error']}")
    return problems


def least_tokens(stock: Outcome, mended: Outcome) -> list[str]:
    """Stock's answers beside drafts are too short or too long; mended ones are those without."""
    problems = [
        f"{which} {load}: {outcome[load]['error']}"
        for which, outcome in (("stock", stock), ("mended", mended))
        for load in ("right", "beside")
        if outcome[load]["error"]
    ]
    right = stock["right"]["tokens"]
    if stock["right"]["steps"] or mended["right"]["steps"]:
        problems.append("there were drafts where there should be none")
    if mended["right"]["tokens"] != right:
        problems.append("other tokens without drafts than stock's")
    theirs, ours = stock["beside"]["tokens"], mended["beside"]["tokens"]
    least = {name: int(name.split()[0]) for name in right}
    early = [name for name, n in least.items() if theirs[name][:n] != right[name][:n]]
    late = [name for name in right.keys() - {*early} if len(theirs[name]) > len(right[name])]
    if not early or not late:
        problems.append(f"stock does not have the faults: {early}, {late}")
    problems += [
        f"the answer of {name} is {ours.get(name)}, not {tokens}"
        for name, tokens in right.items()
        if ours.get(name) != tokens
    ]
    if not any(accepted for steps in mended["beside"]["steps"].values() for *_, accepted in steps):
        problems.append("no draft was accepted")
    return problems


JUDGES = {
    "bad_input": bad_input,
    "eager_draft": eager_draft,
    "second_runner": second_runner,
    "least_tokens": least_tokens,
    "long_request": long_request,
    "long_request_in_graphs": long_request_in_graphs,
    "refused_parameters": refused_parameters,
    "weights": weights,
    "context_limit": context_limit,
    "overwritten_states": overwritten_states,
}
