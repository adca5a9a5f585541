"""Start ``run_engine`` in the environment of some vLLM and take its result home."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from overlay.proof import engine_pool
from overlay.proof.engine_pool import ProcessGroup, append_path, link_packages
from tests.engine.engine_spec import EngineSpec

__all__ = (
    "EngineFailed",
    "append_path",
    "foreign_environment",
    "launch",
    "link_packages",
    "run_session",
    "write_models",
)
TESTS = Path(__file__).resolve().parents[1]
#: Modules that write models, by the name that is asked for; see their docstrings.
WRITERS = {
    "tiny_models": "tests.engine.tiny_eagle",
    "tiny_drafters": "tests.engine.more_drafters",
    **{name: f"tests.engine.{name}" for name in ("tiny_moe", "tiny_mla", "tiny_glm")},
    "tiny_hybrids": "tests.engine.tiny_hybrids",
}


class EngineFailed(Exception):
    """The engine did not run to its end.

    :ivar output: everything it printed.
    """

    def __init__(self, message: str, output: str) -> None:
        self.output = output
        super().__init__(f"{message}; its last lines:\n{output[-4000:]}")


def foreign_environment() -> dict[str, str]:
    """Copy this process's variables without those that steer its own Python and the overlay."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OVERLAY"))
    }


def write_models(
    python: Path | str,
    folder: Path,
    writer: str = "tiny_models",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Write models into ``folder``, in an environment that has PyTorch.

    :param writer: one of ``WRITERS``.
    :param environment: the variables to run under; default: ``foreign_environment``.
    :raises WriterFailed: if it fails.
    """
    variables = environment or foreign_environment()
    engine_pool.write_models(python, folder, WRITERS[writer], variables, (TESTS,))


def launch(
    python: Path | str,
    spec: EngineSpec,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> dict[str, Any]:
    """Run one spec with the given interpreter.

    :param env: further environment variables; the caller's ``PYTHON*`` and ``OVERLAY*`` ones do
        not reach the engine.
    :param timeout: seconds until the engine is killed, with all its workers.
    :returns: the result of ``run_engine``, and what the engine printed under ``log``.
    :raises EngineFailed: if it ends without a result.
    """
    with tempfile.TemporaryDirectory(prefix="engine-") as work:
        spec_file, out, log = (Path(work, name) for name in ("spec.json", "result.json", "log"))
        spec_file.write_text(spec.to_json(), encoding="utf-8")
        code = link_packages(Path(work, "code"), {TESTS, *map(Path, spec.packages)})
        with log.open("wb") as stream:
            status = run_session(
                [str(python), "-m", "tests.engine.run_engine", str(spec_file), "--out", str(out)],
                Path(work),
                append_path({**foreign_environment(), **(env or {})}, code),
                stream,
                timeout,
            )
        text = log.read_text(encoding="utf-8", errors="replace")
        if status is None:
            raise EngineFailed(f"the engine did not end within {timeout} seconds", text)
        if status != 0 or not out.is_file():
            raise EngineFailed(f"the engine ended with status {status} and no result", text)
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    result["log"] = text
    return result


def run_session(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: IO[bytes],
    timeout: float,
) -> int | None:
    """Run a command in a session of its own; whatever it started is killed at the end.

    :param folder: its working folder; :param output: takes what it prints.
    :returns: its exit status; ``None`` where it was killed after ``timeout`` seconds.
    """
    group = ProcessGroup(command, environment, output, folder)
    try:
        return group.wait(timeout)
    finally:
        group.kill()
