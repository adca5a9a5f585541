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
    env={"OVERLAY_DRAFT_GATE": "on"},
)
#: Name -> the engine, and what is done with it; the last load ends a stock engine.
ENGINES = {
    "plain": (PLAIN, ("overwritten_states", "context_limit")),
    "graphs": (GRAPHS, ("capture", "long_neighbour")),
    # Repeats the proof of the one with graphs.
    "short draft": (
        replace(PLAIN, speculative=GRAPHS.speculative, env=GRAPHS.env),
        ("long_neighbour",),
    ),
}
CASES = [
    pytest.param(name, hook, marks=pytest.mark.thorough if name == "short draft" else ())
    for name, (_, hooks) in ENGINES.items()
    for hook in hooks
    if hook in JUDGES
]


@dataclass
class Ran:
    """What the engines of a stock and of a patched vLLM did, by engine and hook."""

    stock: dict[str, Any]
    mended: dict[str, Any]


def run(python: Path, models: Path, names: list[str]) -> dict[str, Any]:
    """Run engines; what each hook gave."""
    specs = [
        replace(
            ENGINES[name][0],
            models=str(models),
            post_load=tuple(HOOKS + hook for hook in ENGINES[name][1]),
        )
        for name in names
    ]
    results = launch_forked(python, specs)
    return {name: result["hooks"] for name, result in zip(names, results, strict=True)}


@pytest.fixture(scope="module")
def ran(
    engine_python: Path,
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[Ran]:
    thorough = pytestconfig.getoption("--thorough")
    names = [name for name in ENGINES if thorough or name != "short draft"]
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("mends")):
        stock = run(copy.python, tiny_models, names)
        overlay("apply", copy.site)
        yield Ran(stock, run(copy.python, tiny_models, names))


@pytest.mark.parametrize(("name", "hook"), CASES)
def test_a_stock_engine_has_the_fault_and_a_mended_one_does_not(
    ran: Ran, name: str, hook: str
) -> None:
    stock, mended = (side[name][f"mend_hooks:{hook}"] for side in (ran.stock, ran.mended))
    assert JUDGES[hook](stock, mended) == []
