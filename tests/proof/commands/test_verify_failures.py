"""What is told of an engine that did not serve."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.proof.commands.verify_stage import failure_text
from overlay.proof.engine_pool import EngineEnd
from overlay.proof.verify_engine import NOT_SERVED

#: vLLM's own lines, of a server whose worker failed: the error, and what follows from it.
CAUSE = "AssertionError: Synthetic acceptance not supported with CPU sampling"
LOG = (
    f"(Worker pid=15619) ERROR 11-23 14:20:46 [multiproc_executor.py:1063] {CAUSE}\n"
    + "  a line of a traceback\n" * 40
    + "RuntimeError: Engine core initialization failed. See root cause above. Failed: {}\n"
)
SERVER: dict[str, Any] = {"problem": NOT_SERVED, "text": "the server ended with status 1"}


@pytest.mark.parametrize("result", [SERVER, None])
def test_the_cause_is_told_and_not_only_that_it_is_somewhere_above(
    result: dict[str, Any] | None,
) -> None:
    text = failure_text(EngineEnd(1, 3.0, result, LOG))
    assert text.count(CAUSE) == 1
    assert text.endswith("See root cause above. Failed: {}")


def test_a_log_that_names_no_cause_is_told_as_it_is() -> None:
    last = LOG.splitlines()[-1]
    assert failure_text(EngineEnd(1, 3.0, SERVER, last)) == f"{SERVER['text']}\n{last}"
    assert failure_text(EngineEnd(1, 3.0, SERVER, "")) == SERVER["text"]


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (None, "did not end within 9 s and was killed (--deadline)"),
        (-9, "was ended by signal 9"),
        (1, "ended with status 1 and a part of its result"),
    ],
)
def test_an_engine_that_had_measured_something_when_it_died_is_told_so(
    status: int | None, how: str
) -> None:
    text = failure_text(EngineEnd(status, 9.0, {"batch1": {}}, LOG))
    assert text.startswith(f"the engine {how}: {CAUSE}\n")
