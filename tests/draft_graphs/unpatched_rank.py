"""Start one of two data-parallel ranks, in a vLLM with the draft graphs or in one without.

``python -m tests.draft_graphs.unpatched_rank SPEC.json RANK PORT PATIENCE``. The rank loads its
models, and warms them up where it gets as far. Prints what that came to, on a line "RANK {...}".
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.draft_graphs import harness

PACKAGE = "vllm.v1.spec_decode.draft_graphs"


def prepare(patience: float) -> None:
    """Lead vLLM to believe that its platform has graphs, with the draft graphs or without.

    :param patience: seconds that the draft graphs wait for the other rank.
    """
    from tests.draft_graphs import cpu_engine, dp_collectives

    cpu_engine.prepare()
    dp_collectives.install()
    if importlib.util.find_spec(PACKAGE) is not None:
        from tests.draft_graphs.recorded_backend import RecordedBackend

        RecordedBackend().install()
        same_settings: Any = importlib.import_module(f"{PACKAGE}.same_settings")
        same_settings.PATIENCE = patience


def start(spec_file: Path) -> None:
    """Start the engine of this rank, and warm it up and capture as a GPU's worker does."""
    import vllm

    from tests.draft_graphs import cpu_engine
    from tests.engine.engine_spec import EngineSpec

    spec = EngineSpec.from_json(spec_file.read_text(encoding="utf-8"))
    cpu_engine.capture_model(vllm.LLM(**spec.llm_arguments()))


def main() -> None:
    """Start the rank, tell how it ended, and end at once: the other may wait for it to be gone."""
    from overlay.proof import engine_compat
    from overlay.results import ModelRunner
    from tests.engine import engine_facts

    spec, rank, port, patience = sys.argv[1:]
    os.environ.update(engine_facts.base_environment(workers=1))
    os.environ.update(engine_compat.runner_environment(ModelRunner.V1))
    os.environ.update(harness.ENVIRONMENT)
    os.environ.update(
        VLLM_DP_SIZE="2",
        VLLM_DP_RANK=rank,
        VLLM_DP_RANK_LOCAL=rank,
        VLLM_DP_MASTER_IP="127.0.0.1",
        VLLM_DP_MASTER_PORT=port,
    )
    outcome: dict[str, Any] = {"error": "", "trace": ""}
    try:
        prepare(float(patience))
        start(Path(spec))
    except Exception as error:  # noqa: BLE001 - whatever is raised is the outcome
        outcome = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    outcome["ended"] = time.time()
    outcome["patched"] = PACKAGE in sys.modules
    print(f"RANK {json.dumps(outcome)}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
