"""Whatever the arguments and variables are: exit 0, 1 or 2, a sentence at the end, no traceback."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support import fake_vllm
from tests.support.cli import Cli, Result

DIGITS = "9" * 4500

#: Values that no command expects.
HOSTILE = [
    *(
        DIGITS,
        f"0.{DIGITS}",
        f"0.26.0..{DIGITS}",
        f"{DIGITS}..{DIGITS}",
        f"vllm=={DIGITS}",
        "v" * 30_000,
    ),
    *(
        "",
        " ",
        "-",
        "--",
        "-1",
        "1e999",
        "nan",
        "inf",
        "0x1",
        "..",
        ".",
        "/",
        "~nosuchuser/x",
        "a\nb",
    ),
    *(
        "\udcff\udcfe",
        "\x1b[2J",
        "\u202e",
        "\u200b",
        "http://[",
        "http://u:p@[",
        "[" * 5000,
        "{}",
        "null",
    ),
    *(
        "/dev/zero",
        "/proc/self/mem",
        "/proc/1/root",
        "=",
        "==",
        "a==",
        "==0.26.0",
        ",",
        "all,all,new",
    ),
    *(
        "0.26.0",
        "1!2.0",
        "0.26.0+local",
        "all",
        "new",
        "x" * 300,
        "a/" * 3000,
        "\u0661.\u0662.\u0663",
    ),
]

#: Commands with one place for such a value; none of them may start an engine or ask an index.
COMMANDS = [
    *(
        "check @",
        "check --releases @",
        "check --feature @",
        "check --without @",
        "check --require @",
    ),
    *(
        "check --python @",
        "check --patches @",
        "diff @",
        "diff --feature @",
        "apply @",
        "apply --feature @",
    ),
    *(
        "apply --require @",
        "revert @",
        "revert --keep-as @ --patches own",
        "status @",
        "status --require @",
    ),
    *(
        "status --live --require @",
        "report --no-matrix @",
        "report --releases @",
        "adopt @",
        "log @",
    ),
    *(
        "log demo --releases @",
        "log --matrix --releases @",
        "list --releases @",
        "list --package @",
    ),
    *(
        "import @ --patches own",
        "import x.diff --base @ --patches own",
        "import x.diff --id @ --patches own",
    ),
    *("import x.diff --releases @ --patches own", "import --update @ x.diff --patches own"),
    *("new @ --patches own", "new mine --release @ --file vllm/x.py --patches own"),
    *(
        "new mine --file @ --patches own",
        "new mine --from-edits @ --patches own",
        "edit @ --patches own",
    ),
    *(
        "edit demo --release @ --patches own",
        "edit --commit @",
        "edit --abort @",
        "port @ --patches own",
    ),
    *(
        "port demo @ --patches own",
        "port --all @ --patches own",
        "port --continue @",
        "port --abort @",
    ),
    *("port --skip @", "port --show @", "prune --oldest @ --patches own", "prune @ --patches own"),
    *("bench --budget @", "bench --rounds @", "bench --engine @", "bench --shape @", "bench --k @"),
    *("bench --model @", "bench --html @", "verify --model @", "verify --python @", "verify --k @"),
    *(
        "cache @",
        "completion @",
        "help @",
        "doctor @",
        "doctor --python @",
        "@",
        "--patches @ list",
    ),
]

VARIABLES = [
    *(
        "OVERLAY_PATCHES",
        "OVERLAY_CACHE",
        "OVERLAY_FEATURES",
        "OVERLAY_UNTESTED",
        "OVERLAY",
        "OVERLAY_X",
    ),
    *(
        "PIP_INDEX_URL",
        "PIP_TIMEOUT",
        "PIP_FIND_LINKS",
        "UV_INDEX_URL",
        "TMPDIR",
        "COLUMNS",
        "HOME",
    ),
    *("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "VLLM_PLUGINS", "VLLM_USE_V2_MODEL_RUNNER"),
]


def expect_answer(told: Result) -> None:
    """Exit 0, 1 or 2; the last line is a sentence; each line is one that a person can read."""
    said = told.out + told.err
    assert told.exit in (0, 1, 2), said
    assert "Traceback" not in said, said
    assert "this is a bug" not in said, said
    assert not {"\x1b", "\u202e"} & set(said)
    lines = said.splitlines()
    assert max(map(len, lines), default=0) < 2000
    assert len(lines) < 500


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a change and a folder of patches, and no index that could be asked."""
    (tmp_path / "work/own").mkdir(parents=True)
    (tmp_path / "work/x.diff").write_text("--- a/vllm/x.py\n+++ b/vllm/x.py\n@@ -1 +1 @@\n-a\n+b\n")
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "OVERLAY"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr("overlay._processes.live.processes", lambda: ())
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


QUIET = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}


@settings(max_examples=80, **QUIET)
@given(st.sampled_from(COMMANDS), st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20)))
@example("check --releases @", DIGITS)
@example("diff @", DIGITS)
@example("check --releases @", f"0.26.0..{DIGITS}")
@example("list --package @", "v" * 30_000)
def test_no_argument_ends_in_a_traceback(cli: Cli, place: Path, command: str, value: str) -> None:
    words = [value if word == "@" else word for word in shlex.split(command)]
    expect_answer(cli(*words))


@settings(max_examples=20, **QUIET)  # each may ask pip, which takes half a second
@given(
    st.sampled_from(VARIABLES),
    st.sampled_from(HOSTILE),
    st.sampled_from(["doctor", "list", "check 0.26.0", "check site", "cache size", "cache clean"]),
)
@example("PIP_INDEX_URL", "http://[", "check 0.26.0")
@example("PIP_TIMEOUT", "1e999", "check 0.26.0")
@example("OVERLAY_PATCHES", "~nosuchuser/x", "doctor")
def test_no_variable_ends_in_a_traceback(
    cli: Cli, place: Path, variable: str, value: str, command: str
) -> None:
    if not (place / "work/site").exists():
        fake_vllm.site_packages(place / "work/site")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PIP_NO_INDEX")
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        patch.setenv("PIP_TIMEOUT", "1")
        patch.setenv(variable, value)
        expect_answer(cli(*command.split()))
