"""vLLM does not start with drafts on two pipeline stages, with the patches or without.

Real engines of model runner V1 on CPU, two processes. `tests/docs/test_many_gpus.py` reads the same
reason in the sources of all releases.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine.engine_launch import EngineFailed, launch
from tests.engine.engine_spec import EngineSpec

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    # Four starts; each release's sources say the same.
    pytest.mark.thorough,
]

STAGES = 2
#: What the first stage says with EAGLE3 drafts, and the last one with an EAGLE head, whose layer it
#: numbers behind the target's layers of one stage.
NO_DRAFTER = "AttributeError: 'CPUModelRunner' object has no attribute 'drafter'"
SAME_NAME = "ValueError: Duplicate layer name: "


def start(python: Path, models: Path, draft: str | None) -> None:
    """Start an engine of two stages, and end it again.

    :raises EngineFailed: if it does not start.
    """
    cores = sorted(os.sched_getaffinity(0))
    bound = "|".join(str(cores[stage % len(cores)]) for stage in range(STAGES))
    spec = EngineSpec(
        models=str(models),
        draft=draft,
        block_size=32,
        kv_blocks=60,
        max_model_len=128,
        env={"VLLM_CPU_OMP_THREADS_BIND": bound},
        engine={"pipeline_parallel_size": STAGES},
    )
    launch(python, spec, timeout=300)


def test_without_drafts_two_stages_start(engine_python: Path, tiny_models: Path) -> None:
    start(engine_python, tiny_models, None)


@pytest.mark.parametrize(
    ("draft", "stage", "said"), [("eagle3", 0, NO_DRAFTER), ("eagle1", 1, SAME_NAME)]
)
def test_with_drafts_they_do_not(
    engine_python: Path, tiny_models: Path, draft: str, stage: int, said: str
) -> None:
    with pytest.raises(EngineFailed) as failure:
        start(engine_python, tiny_models, draft)
    expect_said(failure.value.output, stage, said)


def test_the_patches_change_nothing_of_it(patched_python: Path, tiny_models: Path) -> None:
    with pytest.raises(EngineFailed) as failure:
        start(patched_python, tiny_models, "eagle3")
    expect_said(failure.value.output, 0, NO_DRAFTER)


def expect_said(output: str, stage: int, said: str) -> None:
    """The worker of a stage has said this."""
    lines = [line for line in output.splitlines() if line.startswith(f"(Worker_PP{stage} ")]
    assert any(said in line for line in lines), output[-4000:]
