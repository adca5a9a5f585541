"""Load vLLM's plugins in processes forked from one that has imported what comes before them.

``python -m tests.in_memory.forked_plugins CASES.json`` runs each case, ``[code, variables]``, and
writes ``NAME.out``, ``NAME.err`` and ``NAME.status`` beside the file.  To import vLLM takes longer
than all that a case does, and nothing of it depends on the variables of the overlay.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from pathlib import Path

from tests.support import rested_collector
from tests.support.forks import run_and_exit

#: What imports vLLM, and nothing that the overlay patches.
EARLY = ("vllm.plugins", "vllm.model_executor.models.registry")


def run(code: str, variables: dict[str, str]) -> None:
    """Run a program under variables."""
    os.environ.clear()
    os.environ.update(variables)
    exec(code, {"__name__": "__main__"})


def main(cases: Path) -> None:
    """Import vLLM, and run each case in a fork."""
    rested_collector.rest()
    for module in EARLY:
        importlib.import_module(module)
    for name, (code, variables) in json.loads(cases.read_text(encoding="utf-8")).items():
        child = os.fork()
        if not child:
            output, error = (cases.with_name(f"{name}.{kind}") for kind in ("out", "err"))
            run_and_exit(functools.partial(run, code, variables), output, error)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        cases.with_name(f"{name}.status").write_text(str(status), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
