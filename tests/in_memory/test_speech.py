"""The lines of the plugin reach the log, whenever vLLM configures it."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from overlay.in_memory import log as speech


@pytest.fixture
def vllm_logger(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """vLLM's module of loggers as from 0.31.0 on: configured by a call that comes later."""
    # To mypy it is any module, without attributes of its own.
    module = types.ModuleType("vllm.logger")
    # A module made here has no declared attributes.
    module._last_configured_logging_config = None  # type: ignore[attr-defined]

    def configure_logging(config: object) -> None:
        # A module made here has no declared attributes.
        module._last_configured_logging_config = config  # type: ignore[attr-defined]

    # A module made here has no declared attributes.
    module.configure_logging = configure_logging  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.logger", module)
    monkeypatch.setattr(speech, "_waiting", [])
    return module


LINES = [(logging.INFO, "what runs"), (logging.WARNING, "what does not")]


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_lines_wait_until_vllm_has_configured_its_loggers(
    vllm_logger: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    speech.say(LINES)
    assert said(caplog) == []
    vllm_logger.configure_logging("a config")
    assert said(caplog) == LINES
    vllm_logger.configure_logging("another")
    assert said(caplog) == LINES


def test_lines_are_said_at_once_where_the_loggers_are_configured(
    vllm_logger: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    vllm_logger.configure_logging("a config")
    speech.say(LINES)
    assert said(caplog) == LINES


def test_a_fork_does_not_repeat_its_parents_lines(
    vllm_logger: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    speech.say(LINES)
    speech.forget()
    vllm_logger.configure_logging("a config")
    assert said(caplog) == []


@pytest.mark.parametrize("later", [True, False])
def test_no_control_character_is_logged_raw(
    vllm_logger: types.ModuleType, caplog: pytest.LogCaptureFixture, later: bool
) -> None:
    if not later:
        vllm_logger.configure_logging("a config")
    speech.warn("the folder \x1b[2J\x9b of somebody\relse")
    vllm_logger.configure_logging("another")
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert "of somebody" in record.getMessage()


def test_an_error_is_escaped_with_what_caused_it() -> None:
    cause = OSError(2, "no \x1b[2J file")
    error = ValueError("first\x1b\nsecond", 7)
    error.__cause__ = cause
    speech.escape(error)
    assert error.args == ("first\\x1b\nsecond", 7)
    assert cause.args == (2, "no \\x1b[2J file")
