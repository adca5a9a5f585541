"""What ends or spoils a stock engine does not touch a mended one: real engines on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine_fixtures import overlay, private_vllm
from tests.engine.engine_spec import EngineSpec
from tests.engine.forked_engines import TESTS, launch_forked
from tests.engine.mend_hooks import LENGTH, SHORT
from tests.engine.mend_judging import JUDGES

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HOOKS = "tests.engine.mend_hooks:"
PLAIN = EngineSpec(
    "", "eagle3hid", 3, max_model_len=LENGTH, packages=(str(TESTS),), pre=(f"{HOOKS}asynchronous",)
)
GRAPHS = replace(
    PLAIN,
    block_size=16,
    kv_blocks=60,
    enforce_eager=False,
    compilation={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    pre=(f"{HOOKS}graphs",),
    speculative={"max_model_len": SHORT},
)
#: Name -> the engine and what is done with it.
CASES = {
    "context_limit": (PLAIN, ("context_limit",)),
    "long_neighbour": (replace(PLAIN, speculative={"max_model_len": SHORT}), ("long_neighbour",)),
    "long_neighbour in graphs": (GRAPHS, ("capture", "long_neighbour")),
    "overwritten_states": (PLAIN, ("overwritten_states",)),
}


@dataclass
class Ran:
    """What the engines of a stock and of a patched vLLM did, by case."""

    stock: dict[str, Any]
    mended: dict[str, Any]


def run(python: Path, models: Path) -> dict[str, Any]:
    """Run each case."""
    specs = [
        replace(spec, models=str(models), post_load=tuple(HOOKS + hook for hook in hooks))
        for spec, hooks in CASES.values()
    ]
    return {
        name: result["hooks"][f"mend_hooks:{CASES[name][1][-1]}"]
        for name, result in zip(CASES, launch_forked(python, specs), strict=True)
    }


@pytest.fixture(scope="module")
def ran(
    engine_python: Path, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ran]:
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("mends")):
        stock = run(copy.python, tiny_models)
        overlay("apply", copy.site)
        yield Ran(stock, run(copy.python, tiny_models))


@pytest.mark.parametrize("case", CASES)
def test_a_stock_engine_has_the_fault_and_a_mended_one_does_not(ran: Ran, case: str) -> None:
    judge = JUDGES[CASES[case][1][-1]]
    assert judge(ran.stock[case], ran.mended[case]) == []
