"""What a stock engine and a mended one did with the loads of ``mend_hooks``, judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.engine.mend_hooks import LENGTH

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


JUDGES = {
    "context_limit": context_limit,
    "overwritten_states": overwritten_states,
}
