"""Help, versions, completion, and what ``-v`` adds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlay import __version__
from overlay._processes import CodeState, ModuleRecord
from overlay._processes.live import LiveProcess
from overlay.commands.live import ProcessesReport
from overlay.report.codes import Code, Verdict
from tests.support.cli import Cli
from tests.support.process_records import record

ROOT = Path(__file__).resolve().parents[2]


def test_overlay_alone_is_help(cli: Cli) -> None:
    bare = cli()
    assert (bare.exit, bare.err) == (0, "")
    assert bare.out == cli("--help").out == cli("help").out


def test_help_of_a_command_is_its_help(cli: Cli) -> None:
    assert cli("help", "apply").out == cli("apply", "--help").out
    unknown = cli("help", "aply")
    assert (unknown.exit, "Did you mean 'apply'?" in unknown.err) == (2, True)


def test_short_version(cli: Cli) -> None:
    assert cli("-V").out == f"overlay {__version__}\n"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_what_the_shell_reads(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert result.exit == 0
    assert "_OVERLAY_COMPLETE" in result.out


@pytest.mark.parametrize("words", [("completion", "bash"), ("help", "apply"), ("help",)])
def test_a_text_is_answered_in_json_too(cli: Cli, words: tuple[str, ...]) -> None:
    answer = cli(*words, "--json").json
    assert (answer["command"], answer["code"]) == (words[0], "printed")
    assert answer["text"] + "\n" == cli(*words).out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("overlay app", "apply"),
        ("overlay apply --fea", "--feature"),
        ("overlay apply --feature draft", "draft-graphs"),
        ("overlay status --require steady", "steady-inputs"),
        ("overlay check --releases 0.26", "0.26.0"),
        ("overlay check 0.31", "0.31.0"),
        ("overlay cache s", "size"),
    ],
)
def test_what_is_completed(line: str, expected: str) -> None:
    words = line.split()
    done = subprocess.run(
        [sys.executable, "-m", "overlay"],
        cwd=ROOT,
        env={
            **os.environ,
            "_OVERLAY_COMPLETE": "fish_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": words[-1],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    offered = [item.partition(",")[2].partition("\t")[0] for item in done.stdout.splitlines()]
    assert expected in offered, done


def test_status_v_names_the_folders_of_patches(
    cli: Cli, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overlay.toml").write_text('patches = ["./team"]\n')
    monkeypatch.chdir(tmp_path)
    shown = cli("status", "-v", site).out
    assert f"patches: {cli.team}" in shown
    assert "patches:" not in cli("status", site).out
    assert cli("doctor", "--json").json["doctor"]["overlay"]["project"] == str(
        tmp_path / "overlay.toml"
    )


def test_live_v_shows_modules_and_scopes() -> None:
    module = ModuleRecord(
        "vllm.v1.worker.gpu_model_runner", "0" * 64, {"Runner.run": CodeState.RUNS}
    )
    patched = record(1, modules=(module,))
    process = LiveProcess(pid=1, title="vllm", engine=1, record=patched, problem=None)
    report = ProcessesReport(Verdict(Code.RUNNING, "One."), (process,))
    line = "vllm.v1.worker.gpu_model_runner (runs): Runner.run runs"
    assert line in "\n".join(map(str, report.lines(verbose=True)))
    assert line not in "\n".join(map(str, report.lines()))
