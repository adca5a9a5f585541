"""The graph double in every process of a data-parallel engine on CPU: a rehearsal for GPUs.

The engine is vLLM's own, with its front end and an engine core a rank; `harness.py` cannot look
into those, but what they run is the same: the module's own capture, dispatch and replay.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.draft_graphs import harness


def prepare() -> None:
    """Prepare any process, the front end included."""
    from tests.draft_graphs import cpu_engine

    for name, value in harness.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    cpu_engine.prepare()


def install() -> None:
    """Prepare a process in which a worker may live."""
    from vllm.v1.spec_decode.draft_graphs import upstream
    from vllm.v1.worker.cpu_worker import CPUWorker

    from tests.draft_graphs import cpu_engine, dp_collectives
    from tests.draft_graphs.recorded_backend import RecordedBackend

    dp_collectives.install()
    RecordedBackend().install()
    upstream.token_counts = dp_collectives.on_the_host(upstream.token_counts)
    stock = CPUWorker.compile_or_warm_up_model

    def compile_or_warm_up_model(self: Any) -> Any:
        result = stock(self)
        with mock.patch.object(cpu_engine, "runner_of", return_value=self.model_runner):
            cpu_engine.capture_model(SimpleNamespace())
        return result

    CPUWorker.compile_or_warm_up_model = compile_or_warm_up_model
