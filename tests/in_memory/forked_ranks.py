"""Forks ranks from one process that imported PyTorch, which takes longer than all that a rank does.

``python -m tests.in_memory.forked_ranks`` reads a line of JSON for each world: a list of ranks,
each ``[program, arguments, environment, output, error]``, the last two the files for what it
prints. It answers with a line of JSON, the exit statuses of the ranks.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.forks import run_beside


def become(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Be as a Python that was started with ``-c``, these arguments and this environment."""
    os.environ.clear()
    os.environ.update(environment)
    own = sys.path[0]  # of this program
    sys.path[:] = [
        *environment.get("PYTHONPATH", "").split(os.pathsep),
        *(each for each in sys.path if each != own),
    ]
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    sys.argv[:] = ["-c", *arguments]
    # A program of a test.
    exec(compile(program, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})


def main() -> None:
    """Serve worlds until there are no more."""
    import torch.distributed  # noqa: F401 - what the ranks share

    for line in sys.stdin:
        ranks = [
            (functools.partial(become, *rank), Path(output), Path(error))
            for *rank, output, error in json.loads(line)
        ]
        print(json.dumps(run_beside(ranks)), flush=True)


if __name__ == "__main__":
    main()
