"""What holds for every command: ``--quiet``, ``--offline`` and ``--color``."""

from __future__ import annotations

import os
import pty
import re
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from overlay.report.lines import Line, Span, is_coloured, paint
from overlay.targets import fetch, http
from overlay.targets.pip_config import IndexConfig
from tests.support.cli import Cli

_CODES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("command", ["check", "status", "list"])
def test_quiet_is_the_last_line_alone(cli: Cli, site: Path, command: str) -> None:
    words = [command, *([site] if command != "list" else [])]
    loud = cli(*words)
    for calls in ((*words, "-q"), ("--quiet", *words)):
        result = cli(*calls)
        assert (result.exit, result.err) == (loud.exit, "")
        assert result.out == f"{loud.last}\n"


def test_quiet_keeps_the_error_and_the_answer_itself(cli: Cli, site: Path) -> None:
    failed = cli("check", site / "nowhere", "-q")
    assert (failed.exit, failed.out) == (2, "")
    assert failed.err.startswith("error: ")
    assert "see the error" not in failed.err
    loud, quiet = cli("diff", site), cli("diff", site, "-q")
    assert quiet.out == loud.out
    assert quiet.err.splitlines() == loud.err.splitlines()[-1:]
    assert cli("list", "--json", "-q").out == cli("list", "--json").out


def test_quiet_and_verbose_are_one_too_many(cli: Cli) -> None:
    for words in (("-q", "list", "-v"), ("list", "-v", "-q"), ("list", "-q", "-v")):
        result = cli(*words)
        assert (result.exit, "--quiet and --verbose" in result.err) == (2, True)


@pytest.fixture
def no_connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """Every address that something tries to reach; the index is one that is not there."""
    addresses: list[object] = []

    def refuse(_: socket.socket, address: object) -> NoReturn:
        addresses.append(address)
        raise OSError("a test forbids it")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    config = IndexConfig(("http://127.0.0.1:9/simple",))
    monkeypatch.setattr(fetch, "configured", lambda: config)
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    return addresses


@pytest.mark.parametrize(
    "line",
    [
        "check 0.26.0",
        "check 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0",
        "check --releases new",
        "list --releases",
        "diff 0.26.0",
        "log --matrix --releases 0.26.0",
        "edit demo --release 0.26.0",
        "import http://127.0.0.1:9/a/b/pull/1 --id x",
    ],
)
def test_offline_reaches_for_no_address_and_says_what_to_do(
    cli: Cli, no_connections: list[object], line: str
) -> None:
    words = line.split()
    for calls in ((*words, "--offline"), ("--offline", *words)):
        result = cli("--patches", cli.team, *calls)
        assert result.exit == 2
        assert "--offline forbids the network" in result.err
        assert no_connections == []


def test_offline_is_of_one_command(
    cli: Cli, no_connections: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.0)
    cli("check", "0.26.0", "--offline")
    cli("check", "0.26.0")
    assert no_connections


def test_offline_reads_what_is_there(cli: Cli, no_connections: list[object], site: Path) -> None:
    assert cli("check", site, "--offline").exit == 0
    assert cli("list", "--offline").exit == 0
    assert no_connections == []


# Colours


def painted(color: str, monkeypatch: pytest.MonkeyPatch, *, terminal: bool, **names: str) -> str:
    """A red word, painted under some variables."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **names}.items():
        monkeypatch.setenv(name, value)
    reading, writing = pty.openpty() if terminal else os.pipe()
    with os.fdopen(writing, "w") as stream:
        paint([Line((Span("word " * 30, "drifted"),))], stream, color)
        data = os.read(reading, 4096)
    os.close(reading)
    return data.decode()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    ("color", "names", "expected"),
    [
        ("auto", {}, None),
        ("always", {}, True),
        ("never", {}, False),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"NO_COLOR": ""}, None),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_when_there_are_colours(
    monkeypatch: pytest.MonkeyPatch,
    color: str,
    names: dict[str, str],
    expected: bool | None,
    terminal: bool,
) -> None:
    text = painted(color, monkeypatch, terminal=terminal, **names)
    assert ("\x1b[" in text) is (terminal if expected is None else expected)
    plain = _CODES.sub("", text).replace("\r\n", "\n")
    assert plain.split() == ["word"] * 30
    if not terminal:
        assert plain.count("\n") == 1  # only a terminal has a width


def test_an_option_before_the_command_and_behind_it(cli: Cli, site: Path) -> None:
    assert "\x1b[" in cli("--color", "always", "check", site).out
    assert "\x1b[" in cli("check", site, "--color", "always").out
    assert "\x1b[" not in cli("check", site, "--color", "never").out
    assert "\x1b[" not in cli("--color", "always", "check", site, "--color", "never").out
    assert cli("check", site, "--color", "blue").exit == 2


def test_only_a_terminal_is_coloured_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with open(os.devnull, "w", encoding="utf-8") as stream:
        assert not is_coloured(stream, "auto")
