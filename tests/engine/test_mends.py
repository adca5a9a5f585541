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
from tests.engine.mend_hooks import LENGTH
from tests.engine.mend_judging import JUDGES

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HOOKS = "tests.engine.mend_hooks:"
PLAIN = EngineSpec(
    "", "eagle3hid", 3, max_model_len=LENGTH, packages=(str(TESTS),), pre=(f"{HOOKS}asynchronous",)
)
#: What is done with the engine; the last load ends a stock one.
LOADS = ("overwritten_states", "context_limit")


@dataclass
class Outcomes:
    """What each load gave in the engines of a stock and of a patched vLLM."""

    stock: dict[str, Any]
    mended: dict[str, Any]


def run(python: Path, models: Path) -> dict[str, Any]:
    """Run an engine; what each load gave."""
    spec = replace(PLAIN, models=str(models), post_load=tuple(HOOKS + load for load in LOADS))
    (result,) = launch_forked(python, [spec])
    hooks: dict[str, Any] = result["hooks"]
    return hooks


@pytest.fixture(scope="module")
def outcomes(
    engine_python: Path, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("mends")):
        stock = run(copy.python, tiny_models)
        overlay("apply", copy.site)
        yield Outcomes(stock, run(copy.python, tiny_models))


@pytest.mark.parametrize("load", LOADS)
def test_a_stock_engine_has_the_fault_and_a_mended_one_does_not(
    outcomes: Outcomes, load: str
) -> None:
    stock, mended = (side[f"mend_hooks:{load}"] for side in (outcomes.stock, outcomes.mended))
    assert JUDGES[load](stock, mended) == []
