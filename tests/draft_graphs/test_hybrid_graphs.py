"""Drafts of targets with several KV-cache groups, and with experts, in a real engine on CPU.

As `test_engine_graphs`: real captures and replays, an audit of every call, junk in padded rows,
and an oracle that knows every token and every accepted draft.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness_client import (
    QUICKEST,
    Outcome,
    Plan,
    Run,
    expect_graphs,
    expect_right,
    make_spec,
    run_harness,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow]

THOROUGH = pytest.mark.thorough
K = 3
#: The sizes of the first make every batch but the full one a padded one.
RUNS = [Run("loop, only 8", "loop", ladder=(8,)), Run("step", "step")]
NAMES = ("gpt-oss", "qwen3-next")
#: Each target and each run once; the others repeat it.
ALWAYS = (("gpt-oss", "loop, only 8"), ("qwen3-next", "step"))


def plan(models: Path, name: str, *, thorough: bool) -> Plan:
    """The engine of a target."""
    runs = [each for each in RUNS if thorough or (name, each.name) in ALWAYS]
    if name == "gpt-oss":
        spec = make_spec(models / name, "eagle3hid", K, kv_blocks=80, engine=QUICKEST)
        return Plan(spec, runs)
    # Its linear attention takes no type but bfloat16 on CPU.
    spec = make_spec(
        models / name, "target", K, speculative={"method": "mtp"}, block_size=None, kv_blocks=80
    )
    return Plan(spec, runs, zero_null_block=True)


@pytest.fixture(scope="module")
def outcomes(
    forks: ForkedModules, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, dict[str, Outcome]]:
    """Each target in one engine."""
    thorough = bool(pytestconfig.getoption("--thorough"))
    models = tmp_path_factory.mktemp("hybrids")
    forks.write_models(models, "tiny_hybrids")
    plans = [plan(models, name, thorough=thorough) for name in NAMES]
    return dict(zip(NAMES, run_harness(forks, plans), strict=True))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        pytest.param(name, each.name, marks=() if (name, each.name) in ALWAYS else (THOROUGH,))
        for name in NAMES
        for each in RUNS
    ],
)
def test_drafts_are_those_of_the_oracle(
    outcomes: dict[str, dict[str, Outcome]], name: str, run: str
) -> None:
    outcome = outcomes[name][run]
    expect_right(outcome)
    expect_graphs(outcome, K)
    assert outcome.group > 0
    assert {replay.split()[0] for replay in outcome.replays} == {"first", run[:4]}
