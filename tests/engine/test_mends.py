"""What ends or spoils a stock engine does not touch a mended one: real engines on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from overlay.results import ModelRunner
from tests.draft_graphs.double_environment import SITE
from tests.engine.engine_fixtures import overlay, private_vllm
from tests.engine.engine_launch import launch
from tests.engine.engine_spec import QUICKEST, EngineSpec
from tests.engine.forked_engines import TESTS, launch_forked
from tests.engine.mend_hooks import LENGTH, SHORT_DRAFT
from tests.engine.mend_judging import JUDGES

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HOOKS = "tests.engine."
PLAIN = EngineSpec(
    "", "eagle3hid", 3, max_model_len=LENGTH, engine=QUICKEST, packages=(str(TESTS),)
)
SHORT = replace(PLAIN, speculative=SHORT_DRAFT, prefix_caching=True)
GRAPHED = replace(
    SHORT,
    enforce_eager=False,
    compilation={
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [4, 16, 32, 64],
    },
)
#: An engine, what is prepared before it, and what is done with it; the last load may end a stock
#: one.
ENGINES = (
    (
        PLAIN,
        "mend_hooks:prepare",
        tuple(
            f"mend_hooks:{load}"
            for load in (
                *("bad_input", "overwritten_states", "refused_parameters"),
                *("least_tokens", "context_limit"),
            )
        ),
    ),
    (PLAIN, "weight_hooks:plain_layers", ("weight_hooks:weights",)),
    (SHORT, "mend_hooks:asynchronous", ("mend_hooks:long_request",)),
    (GRAPHED, "mend_hooks:graphs", ("mend_hooks:long_request_in_graphs",)),
)
#: On model runner V2, whose kernels Triton's interpreter runs.
SECOND = replace(
    PLAIN,
    speculative=SHORT_DRAFT,
    runner=ModelRunner.V2,
    block_size=32,
    post_load=(f"{HOOKS}mend_hooks:second_runner",),
)
INTERPRETED = {"TEST_DOUBLE": "interpreted", "TRITON_INTERPRET": "1", "PYTHONPATH": str(SITE)}
LOADS = tuple(load for *_, loads in ENGINES for load in loads)


@dataclass
class Outcomes:
    """What each load gave in the engines of a stock and of a patched vLLM; ``second``: on V2."""

    stock: dict[str, Any]
    mended: dict[str, Any]
    second: dict[str, Any]


def run(python: Path, models: Path) -> dict[str, Any]:
    """Run the engines; what each load gave."""
    specs = [
        replace(
            engine,
            models=str(models),
            pre=(HOOKS + pre,),
            post_load=tuple(HOOKS + load for load in loads),
        )
        for engine, pre, loads in ENGINES
    ]
    results = launch_forked(python, specs)
    return {load: outcome for each in results for load, outcome in each["hooks"].items()}


@pytest.fixture(scope="module")
def outcomes(
    engine_python: Path, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("mends")):
        stock = run(copy.python, tiny_models)
        overlay("apply", copy.site)
        second = launch(copy.python, replace(SECOND, models=str(tiny_models)), env=INTERPRETED)
        yield Outcomes(stock, run(copy.python, tiny_models), second["hooks"])


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.partition(":")[2])
def test_a_stock_engine_has_the_fault_and_a_mended_one_does_not(
    outcomes: Outcomes, load: str
) -> None:
    stock, mended = outcomes.stock[load], outcomes.mended[load]
    assert JUDGES[load.partition(":")[2]](stock, mended) == []


def test_on_the_second_runner_what_is_refused_ends_alone(outcomes: Outcomes) -> None:
    """V2 has neither the fault of the context limit nor that of the gate."""
    (second,) = outcomes.second.values()
    assert JUDGES["second_runner"](outcomes.stock["mend_hooks:bad_input"], second) == []
