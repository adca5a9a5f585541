"""Whatever happens: one exit code, one sentence, JSON alone on standard output, no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlay.cli import run as terminal
from overlay.errors import TargetError
from tests.support import fake_vllm
from tests.support.cli import PROPOSER, Cli
from tests.support.patches import hunk, patch_text, write_feature

REPOSITORY = Path(__file__).resolve().parents[2]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "overlay", *map(str, arguments)]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json"],
        ["chek", "--json"],
        ["check", "--no-such-option", "--json"],
        ["status", "one", "two", "--json"],
        ["check", "--json", "--feature"],
        ["apply", "/no/such/place", "--json"],
        ["--patches", "/no/such/place", "list", "--json"],
        ["revert", "0.26.0", "--json"],
    ],
)
def test_with_json_every_error_is_json(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.exit == 2
    assert result.err == ""
    assert (result.json["schema"], result.json["exit"], result.json["targets"]) == (2, 2, [])
    assert result.json["error"]
    known = {"check", "apply", "revert", "status", "list", "overlay"}
    assert result.json["command"] in known


@pytest.mark.parametrize("arguments", [["chek"], ["check", "--no-such-option"], ["apply", "/no"]])
def test_without_json_errors_go_to_standard_error(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert (result.exit, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert "stopped" not in result.err


def test_a_word_behind_two_dashes_is_no_option(cli: Cli) -> None:
    result = cli("status", "--", "--json")
    assert (result.exit, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert "--json" in result.err.splitlines()[0]


def test_errors_of_the_system_are_told_with_place_and_remedy(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/opt/vllm/x.py")

    monkeypatch.setattr("overlay.commands.request.Request.at_hand", refuse)
    result = cli("list")
    assert result.exit == 2
    assert result.err.splitlines()[0] == (
        "error: /opt/vllm/x.py: Permission denied; run the command as the user that owns the place"
    )
    assert "Traceback" not in result.err


def test_our_errors_keep_their_words(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TargetError("expected this, found that")

    monkeypatch.setattr("overlay.commands.request.Request.at_hand", refuse)
    assert cli("list", "--json").json["error"] == "expected this, found that"


def test_a_bug_shows_its_traceback_and_where_to_go(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("overlay.commands.request.Request.at_hand", fail)
    result = cli("list", "--json")
    assert result.exit == 2
    assert "Traceback" in result.err
    assert "ZeroDivisionError: a bug" in result.json["error"]
    assert "report it" in result.json["error"]


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_the_exit_code_outlives_a_reader_that_leaves(
    tmp_path: Path, json_option: list[str]
) -> None:
    # Enough features that their list does not fit into a pipe without a reader.
    for number in range(60):
        topics = {
            f"{topic:02}-t/0.20.0..0.22.1.patch": patch_text(PROPOSER, hunk([" a", f"+{topic}"]))
            for topic in range(40)
        }
        write_feature(tmp_path, topics, id=f"f{number}")
    process = start("--patches", tmp_path, "list", *json_option)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == 1  # the holes need somebody, whoever reads about them
    assert process.stderr.read() == ""


def test_ctrl_c_ends_quietly(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "site")
    holder = _hold(site)
    try:
        process = start("status", site)
        assert process.stderr is not None
        _wait_for_import(process)
        out, err = _interrupted(process)
    finally:
        holder.kill()
        holder.wait()
    assert process.returncode == 130
    assert out == ""
    assert err.strip() == ""


def test_an_error_that_ctrl_c_caused_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr(terminal.cli, "main", main)
    assert terminal.run(["status"]) == 130
    assert capsys.readouterr() == ("", "")


def _interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed until it ended; Python drops an interruption that falls into a finalizer."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=5)
    process.kill()
    return process.communicate()


def _hold(site: Path) -> subprocess.Popen[bytes]:
    """Another process that holds the target, as an apply does."""
    code = (
        "import fcntl, os, sys, time\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(120)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(site / "vllm")], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def _wait_for_import(process: subprocess.Popen[str]) -> None:
    """Until the command has had the time to reach the lock, which it cannot get."""
    deadline = time.monotonic() + 20
    folder = Path(f"/proc/{process.pid}/fd")
    if not folder.is_dir():
        time.sleep(3)
        return
    while time.monotonic() < deadline:
        links = [os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()]
        if any(link.endswith("/vllm") for link in links):
            return
        time.sleep(0.02)
    raise AssertionError("the command never opened the folder that it locks")


def test_the_command_itself(tmp_path: Path) -> None:
    site = fake_vllm.site_packages(tmp_path / "site", version="0.15.0")
    process = start("status", site, "--json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    data = json.loads(out)
    assert data["command"] == "status"
    assert data["targets"][0]["root"] == str(site.resolve())


def test_a_path_that_is_no_text(cli: Cli, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/site-\xff"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes text only")
    site = fake_vllm.site_packages(Path(os.fsdecode(folder)))
    assert cli("check", site).exit == 0
    assert cli("check", site, "--json").json["targets"][0]["root"].endswith("site-\udcff")
    assert cli("apply", site).exit == 0
    assert cli("revert", site).exit == 0


def test_on_a_terminal_there_is_colour_unless_it_is_unwanted(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    site = fake_vllm.site_packages(tmp_path / "site", version="0.15.0")

    def seen(**environment: str) -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            command("status", site),
            cwd=REPOSITORY,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        os.close(theirs)
        found = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end was closed
                break
            if not piece:
                break
            found += piece
        os.close(ours)
        assert process.wait(30) == 0
        return found.decode()

    assert "\x1b[" in seen()
    plain = seen(NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "\x1b[9" not in plain
    assert "vLLM 0.15.0" in plain


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("overlay.commands.request.Request.at_hand", interrupt)
    assert terminal.run(["list"]) == 130
    monkeypatch.undo()
    monkeypatch.setattr("overlay.cli.run._write", interrupt)
    assert terminal.run(["list"]) == 130


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_an_error(options: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("list", *options),
            check=False,
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the answer could not be written: No space left on device")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_nothing_about_the_exit_code(closed: str, tmp_path: Path) -> None:
    for arguments, code in ((("list",), 0), (("check", tmp_path), 2)):
        line = " ".join(map(str, command(*arguments)))
        done = subprocess.run(
            f"{line} {closed}",
            check=False,
            shell=True,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr
