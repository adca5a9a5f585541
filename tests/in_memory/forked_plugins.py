"""Load vLLM's plugins in processes forked from one that has imported what comes before them.

``python -m tests.in_memory.forked_plugins GROUPS.json`` runs group after group, and the cases of
each beside one another: by name, ``[code, variables]``.  It writes ``NAME.out``, ``NAME.err`` and
``NAME.status`` beside the file.  To import vLLM takes longer than most of what a case does, and
nothing of it depends on the variables of the overlay.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engine.engine_launch import run_session
from tests.engine.engine_spec import EngineSpec
from tests.support import rested_collector, shared_memory
from tests.support.forks import run_beside

#: What imports vLLM, and nothing that the overlay patches.
EARLY = ("vllm.plugins", "vllm.model_executor.models.registry")
#: Runs the engine of a spec, and writes its result if it runs to its end.  What it spawns finds
#: its way by the program's own name, as where that is run alone.
_ENGINE = """
import sys
from tests.engine import run_engine
sys.modules["__main__"].__spec__ = run_engine.__spec__
sys.argv[1:] = [{!r}, "--out", {!r}]
run_engine.main()
"""


def engine(spec: EngineSpec, folder: Path, name: str) -> str:
    """The program of a case: an engine, whose spec is put in a folder."""
    file = folder / f"{name}.spec"
    file.write_text(spec.to_json(), encoding="utf-8")
    return _ENGINE.format(str(file), str(folder / f"{name}.result"))


def engine_result(folder: Path, name: str) -> dict[str, Any] | None:
    """What an engine came to, or None: it did not run to its end."""
    file = folder / f"{name}.result"
    if not file.is_file():
        return None
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result


def run(code: str, variables: dict[str, str]) -> None:
    """Run a program under variables."""
    os.environ.clear()
    os.environ.update(variables)
    exec(code, {"__name__": "__main__"})


def run_groups(
    python: Path,
    groups: Sequence[Mapping[str, tuple[str, Mapping[str, str]]]],
    folder: Path,
    variables: Mapping[str, str],
    timeout: float = 1200,
) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run cases in an environment with vLLM, and say how each ended.

    :param folder: an empty one, which is the cases' working folder.
    :param variables: those of the process that forks; each case has only its own.
    :param timeout: seconds for all of them.
    :raises RuntimeError: if the process that forks fails or is not done by then.
    """
    (folder / "groups.json").write_text(json.dumps(groups), encoding="utf-8")
    with (folder / "log").open("w+b") as log:
        ended = run_session(
            [str(python), "-m", "tests.in_memory.forked_plugins", str(folder / "groups.json")],
            folder,  # not the checkout, from which "-m" would import
            variables,
            log,
            timeout,
        )
    if ended != 0:
        text = (folder / "log").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"the process that forks ended with {ended}: {text[-4000:]}")
    answers = {}
    for name in (name for group in groups for name in group):
        status, out, err = (
            (folder / f"{name}.{kind}").read_text(encoding="utf-8", errors="replace")
            for kind in ("status", "out", "err")
        )
        answers[name] = subprocess.CompletedProcess(name, int(status), out, err)
    return answers


def printed(case: subprocess.CompletedProcess[str]) -> str:
    """All that a case printed."""
    return f"{case.stdout}{case.stderr}"


def main(file: Path) -> None:
    """Import vLLM, and run each case in a fork."""
    rested_collector.rest()
    for module in EARLY:
        importlib.import_module(module)
    for group in json.loads(file.read_text(encoding="utf-8")):
        cases = [
            (
                functools.partial(run, code, variables),
                file.with_name(f"{name}.out"),
                file.with_name(f"{name}.err"),
            )
            for name, (code, variables) in group.items()
        ]
        before = shared_memory.present()
        for name, status in zip(group, run_beside(cases), strict=True):
            file.with_name(f"{name}.status").write_text(str(status), encoding="utf-8")
        # All ranks that torchrun starts name theirs alike, and forks leave it to the next ones.
        shared_memory.remove(shared_memory.present() - before, shared_memory.mapped())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
