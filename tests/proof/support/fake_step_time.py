"""An engine without a model that takes turns as ``overlay.proof.step_time`` does.

It is measured by the real ``measuring.in_turns``, and writes down when (:mod:`traces`).
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from overlay.proof import measuring
from overlay.proof.meeting import Meeting
from tests.proof.support import traces

#: Tokens of what is measured: other than those of the first call, which is made at any time.
_TOKENS = 192


class FakeEngine:
    """Takes as long for a step as the test says, by a clock of its own; a word is an error."""

    def __init__(self, name: str, milliseconds: list[float | str]) -> None:
        self._name, self._milliseconds = name, milliseconds
        self._runs = self._drafts = 0

    def counter(self, name: str) -> float:
        return self._drafts * {"num_drafts": 1, "num_accepted_tokens": 1.5}[name]

    def generate(self, size: int, tokens: int) -> float:
        if tokens != _TOKENS:
            return 0.0
        with traces.measuring(self._name):
            self._runs += 1
            self._drafts += 100 * size
            step = self._milliseconds[self._runs % len(self._milliseconds)]
            if isinstance(step, str):
                raise ValueError(step)
            return 0.1 * step

    def workers(self, method: str, *args: Any) -> list[Any]:
        return [{}]


def take_turns(
    argv: list[str], name: str, words: list[float | str], result: dict[str, Any], out: Path
) -> None:
    """Measure in the turns that the command line names, and keep the result of each batch."""
    given = dict(itertools.pairwise(argv))
    begun, seconds = time.monotonic(), float(given["--seconds"])

    def keep(times: dict[int, dict[str, Any]]) -> None:
        figures = {f"batch{size}": each for size, each in times.items()}
        made = out.with_name("new")
        made.write_text(json.dumps(result | figures))
        made.replace(out)

    keep({})
    measuring.in_turns(
        FakeEngine(name, words),
        [int(size) for size in given["--batch"].split(",")],
        _TOKENS,
        int(given["--repeats"]),
        int(given["--turns"]),
        Meeting(Path(given["--meet"]), int(given["--party"]), 1),
        over=lambda: time.monotonic() - begun >= seconds,
        keep=keep,
    )
