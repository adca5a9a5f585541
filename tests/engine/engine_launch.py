"""Start ``run_engine.py`` in the environment of some vLLM and take its result home."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_spec import EngineSpec

SCRIPT = Path(__file__).with_name("run_engine.py")


class EngineFailed(Exception):
    """The engine did not run to its end.

    :ivar output: everything it printed.
    """

    def __init__(self, message: str, output: str) -> None:
        self.output = output
        super().__init__(f"{message}; its last lines:\n{output[-4000:]}")


def launch(
    python: Path | str,
    spec: EngineSpec,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> dict[str, Any]:
    """Run one spec with the given interpreter; the result of ``run_engine.py``, and its ``log``.

    :param env: further environment variables; the caller's ``PYTHON*`` and ``OVERLAY*`` ones do
        not reach the engine.
    :param timeout: seconds until the engine is killed, with all its workers.
    :raises EngineFailed: if it ends without a result.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OVERLAY"))
    }
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        spec_file, out, log = (Path(folder, name) for name in ("spec.json", "result.json", "log"))
        spec_file.write_text(spec.to_json(), encoding="utf-8")
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [str(python), str(SCRIPT), str(spec_file), "--out", str(out)],
                cwd=folder,
                env={**inherited, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end_session(process)
        text = log.read_text(encoding="utf-8", errors="replace")
        if status is None:
            raise EngineFailed(f"the engine did not end within {timeout} seconds", text)
        if status != 0 or not out.is_file():
            raise EngineFailed(f"the engine ended with status {status} and no result", text)
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    result["log"] = text
    return result


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the engine's own process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
