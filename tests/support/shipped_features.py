"""The shipped features of vLLM by name, read once, and the names that Python code binds."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

from overlay._features.folder import load
from overlay._features.model import Feature
from overlay._features.sources import shipped_folder
from overlay.package import VLLM

DRAFTS = "draft-graphs"
LORA = "active-lora-graphs"
STEADY = "steady-inputs"
GREEDY = "greedy-verification"
DBO = "dbo"
BOOKKEEPING = "batched-bookkeeping"
LIMIT = "context-limit"
PROMPTS = "prompt-logprobs"
WEIGHTS = "draft-weights"
SAMPLING = "draft-sampling"
GATE = "draft-gate"
LEAST = "min-tokens"
EAGER = "eager-draft"
REASONING = "reasoning-end"
SCHEDULER = "steady-scheduler"
SIZES = "decode-graph-sizes"
#: Those that mend a fault of a stock vLLM.
MENDS = (LIMIT, PROMPTS, WEIGHTS, SAMPLING, GATE, LEAST, EAGER)
#: Those whose fault a known release has mended itself, and the last release that has it.
RETIRED = {REASONING: "0.26.0"}
#: Those that patch what both model runners of the newest release have.
BOTH_RUNNERS = (SCHEDULER, SIZES, WEIGHTS, SAMPLING)
#: The features that patch the known releases.
OURS = (DRAFTS, STEADY, GREEDY, DBO, BOOKKEEPING, SCHEDULER, SIZES, *MENDS, *RETIRED)


@functools.cache
def shipped() -> tuple[Feature, ...]:
    """Every shipped feature of vLLM."""
    return tuple(each for each in load([shipped_folder()]) if each.package == VLLM)


def feature(name: str) -> Feature:
    """The shipped feature of an id."""
    return next(feature for feature in shipped() if feature.id == name)


def bound_by(nodes: Sequence[ast.AST]) -> set[str]:
    """What imports, classes and functions among the nodes bind."""
    bound: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            bound.add(node.name)
    return bound
