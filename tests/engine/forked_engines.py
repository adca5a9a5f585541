"""Run several engines of one environment, each in a process forked from one that imported vLLM.

``python -m tests.engine.forked_engines SPEC.json...`` writes for each spec ``SPEC.result``, unless
it fails, and ``SPEC.log``.  Importing vLLM takes twice as long as a small engine does; a process
for each keeps whatever one engine does from the others.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overlay.proof import engine_compat
from overlay.results import ModelRunner
from tests.engine import engine_facts, run_engine
from tests.engine.engine_launch import (
    EngineFailed,
    append_path,
    foreign_environment,
    link_packages,
    run_session,
)
from tests.engine.engine_spec import EngineSpec
from tests.support import rested_collector
from tests.support.forks import run_and_exit

TESTS = Path(__file__).resolve().parents[1]
#: What an engine imports late, beside what ``vllm.LLM`` does.
LATE = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.spec_decode.llm_base_proposer",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
)


def launch_forked(
    python: Path,
    specs: Sequence[EngineSpec],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 1200,
) -> list[dict[str, Any]]:
    """Run specs one after the other, as ``engine_launch.launch`` runs one.

    :param specs: engines whose worker is in their own process.
    :param env: further environment variables of all of them; those of one are in its spec.
    :param timeout: seconds for all of them.
    :raises EngineFailed: at the first that ends without a result.
    """
    with tempfile.TemporaryDirectory(prefix="engines-") as work:
        files = [Path(work, f"{number}.json") for number in range(len(specs))]
        for file, spec in zip(files, specs, strict=True):
            file.write_text(spec.to_json(), encoding="utf-8")
        code = link_packages(Path(work, "code"), (TESTS,))
        with Path(work, "log").open("w+b") as log:
            status = run_session(
                [str(python), "-m", "tests.engine.forked_engines", *map(str, files)],
                Path(work),
                append_path({**foreign_environment(), **(env or {})}, code),
                log,
                timeout,
            )
            log.seek(0)
            said = log.read().decode("utf-8", "replace")
        ended = f"killed after {timeout:.0f} seconds" if status is None else f"status {status}"
        return [_result(file, f"{said}({ended})") for file in files]


def _result(spec: Path, said: str) -> dict[str, Any]:
    result, log = spec.with_suffix(".result"), spec.with_suffix(".log")
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else said
    if not result.is_file():
        raise EngineFailed("the engine ended without a result", text)
    return {**json.loads(result.read_text(encoding="utf-8")), "log": text}


def main(specs: Sequence[Path]) -> None:
    """Import vLLM, and run each spec in a fork."""
    rested_collector.rest()
    for name, value in engine_facts.base_environment(workers=1).items():
        os.environ.setdefault(name, value)
    os.environ.update(engine_compat.runner_environment(ModelRunner.V1))
    for module in LATE:
        importlib.import_module(module)
    for spec in specs:
        process = os.fork()
        if not process:
            run_and_exit(functools.partial(_run, spec), spec.with_suffix(".log"))
        os.waitpid(process, 0)


def _run(file: Path) -> None:
    """Run one spec."""
    spec = EngineSpec.from_json(file.read_text(encoding="utf-8"))
    run_engine.prepare(spec)
    result = json.dumps(run_engine.run(spec))
    file.with_suffix(".result").write_text(result, encoding="utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
