"""Log through vLLM's logger; buffer until vLLM has configured it (0.31 and later).

From 0.31.0 on vLLM configures its loggers from the parsed arguments, after it has loaded its
plugins; a line that is logged before would be lost."""

from __future__ import annotations

import atexit
import functools
import logging
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from overlay.untrusted import printable

#: Under vLLM's logger, so that its handlers and levels apply.
logger = logging.getLogger("vllm.overlay")

Line = tuple[int, str]

_waiting: list[Line] = []


def say(lines: Iterable[Line]) -> None:
    """Log the lines (level, text) now, or as soon as vLLM has configured its loggers."""
    vllm_logger = sys.modules.get("vllm.logger")
    if vllm_logger is None or not _configures_later(vllm_logger):
        for level, text in lines:
            logger.log(level, "%s", printable(text, lines=True))
        return
    if not _waiting:
        _listen(vllm_logger)
        atexit.register(_flush)
    _waiting.extend(lines)


def warn(text: str) -> None:
    """Log one WARNING of the overlay."""
    say([(logging.WARNING, f"vllm-overlay: {text}")])


def escape(error: BaseException) -> None:
    """Escape the control characters in an error that ends a process, and in what caused it.

    Python prints it to a terminal or a log, and its text may name what strangers named.
    """
    cause: BaseException | None = error
    while cause is not None:
        cause.args = tuple(
            printable(each, lines=True) if isinstance(each, str) else each for each in cause.args
        )
        cause = cause.__cause__ or cause.__context__


def forget() -> None:
    """Drop the buffered lines in a forked child: they are its parent's."""
    _waiting.clear()


def _configures_later(vllm_logger: ModuleType) -> bool:
    state = "_last_configured_logging_config"
    return hasattr(vllm_logger, state) and getattr(vllm_logger, state) is None


def _listen(vllm_logger: ModuleType) -> None:
    inner = vllm_logger.configure_logging

    @functools.wraps(inner)
    def configure_then_speak(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        _flush()
        return result

    # To mypy it is any module.
    vllm_logger.configure_logging = configure_then_speak  # type: ignore[attr-defined]


def _flush() -> None:
    lines, _waiting[:] = list(_waiting), []
    for level, text in lines:
        logger.log(level, "%s", printable(text, lines=True))
