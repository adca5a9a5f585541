"""Programs that this room starts reach no repository but the one that they are about, and end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlay.authoring import git, resolvers
from overlay.authoring.git import Checkout, environment, run
from overlay.authoring.port_views import Conflict
from overlay.errors import UsageError
from tests.support.git_repository import Repository, needs_git

PATH = "vllm/x.py"

#: What a hook, or `git rebase --exec` in a worktree, sets.
LEADING = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")

TEXTS = Conflict(b"a = 1\n", b"a = 2\n", b"a = 3\n", b"<<<<<<< x\n=======\n>>>>>>> y\n")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another repository, to which every variable of git leads."""
    folder = tmp_path / "theirs"
    repository = Repository.create(folder)
    repository.commit("theirs", {"vllm/x.py": b"theirs = 1\n"})
    places = (".git", ".git/index", "", ".git/objects", ".git")
    for name, place in zip(LEADING, places, strict=True):
        monkeypatch.setenv(name, str(folder / place))
    monkeypatch.setenv("GIT_CONFIG", str(folder / ".git/config"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.worktree'='{folder}'")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.worktree")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(folder))
    settings = tmp_path / "gitconfig"
    settings.write_text(
        '[merge]\ntool = mine\n[mergetool "mine"]\ncmd = "cp $LOCAL $MERGED && git add -A"\n'
        "trustExitCode = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    return folder


@needs_git
def test_the_environment_of_a_program_leads_to_no_repository(theirs: Path) -> None:
    left = {name for name in environment() if name.startswith("GIT_")}
    assert left == {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"}
    assert environment()["PATH"] == os.environ["PATH"]


@needs_git
def test_a_checkout_that_the_command_is_called_in_names_no_merge_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git runs the file of a tool whose name is a path."""
    script = tmp_path / "tool"
    script.write_text(f"touch {tmp_path / 'ran'}\n")
    above = "../" * 40
    checkout = Repository.create(tmp_path / "checkout")
    checkout("config", "merge.tool", f"{above}{script}")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.chdir(checkout.folder)
    with pytest.raises(UsageError, match=r"merge\.tool, which is not set"):
        resolvers.merge_tool(TEXTS, PATH)
    assert not (tmp_path / "ran").exists()


@needs_git
def test_no_merge_tool_or_resolver_reaches_another_repository(theirs: Path, tmp_path: Path) -> None:
    before = contents(theirs)
    assert resolvers.merge_tool(TEXTS, PATH) == b"a = 2\n"
    script = tmp_path / "tool.py"
    script.write_text(
        "import shutil, subprocess, sys\n"
        "for words in (['init', '-q'], ['add', '-A']):\n"
        "    subprocess.run(['git', *words], check=True)\n"
        "shutil.rmtree('.git')\n"
        "shutil.copy(sys.argv[2], sys.argv[4])\n"
    )
    command = f"{sys.executable} {script}"
    assert resolvers.propose(command, TEXTS, PATH, ()) == b"a = 2\n"
    assert contents(theirs) == before


@needs_git
def test_a_checkout_is_the_one_that_is_named(theirs: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("GIT_"):
                patch.delenv(name)
        mine = Repository.create(tmp_path / "mine")
        mine.commit("mine", {"vllm/a.py": b"a = 1\n"})
    before = contents(theirs)
    (entry,) = Checkout(mine.folder).history()
    assert entry.subject == "mine"
    assert contents(theirs) == before


def test_a_resolver_is_watched_beside_what_cannot_be_read_whole(tmp_path: Path) -> None:
    """A pipe, and a file that is larger than a text, in the folders that it must not change."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(resolvers._LIMIT + 1)
    result = "import shutil, sys; shutil.copy(sys.argv[-3], sys.argv[-1]);"
    (tmp_path / "tool.py").write_text(result)
    command = f"{sys.executable} {tmp_path / 'tool.py'}"
    assert resolvers.propose(command, TEXTS, PATH, (tmp_path,)) == b"a = 2\n"
    for harm in ("open(P + '/large', 'ab').write(b'x')", "import os; os.unlink(P + '/pipe')"):
        (tmp_path / "tool.py").write_text(f"P = {str(tmp_path)!r}; {result}{harm}\n")
        with pytest.raises(UsageError, match="it changed files of the session"):
            resolvers.propose(command, TEXTS, PATH, (tmp_path,))


#: A program that leaves a child in a session of its own, which holds what it was given.
DETACHING = f"""
import subprocess, sys, time
subprocess.Popen([{sys.executable!r}, "-c", "import time; time.sleep(20)"], start_new_session=True)
"""


@pytest.mark.parametrize("then", ["", "time.sleep(60)"])
def test_a_detached_child_holds_nobody_up(tmp_path: Path, then: str) -> None:
    script = tmp_path / "tool.py"
    script.write_text(f"{DETACHING}{then}\n")
    began = time.monotonic()
    command = f"{sys.executable} {script}"
    with pytest.raises(UsageError, match="still has the markers" if not then else "took longer"):
        resolvers.propose(command, TEXTS, PATH, (), seconds=2.0 if then else 30.0)
    assert time.monotonic() - began < 15


def test_its_own_group_ends_with_a_program(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)']); print(child.pid)"
    )
    ended = run([sys.executable, "-c", script], 30.0, environment())
    child = int(ended.output)
    for _ in range(100):
        try:
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                break
        except FileNotFoundError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child of a program that has ended still runs")


def test_what_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "LIMIT", 1024)
    for stream in ("stdout", "stderr"):
        script = f"import sys\nwhile True: sys.{stream}.write('x' * 4096)"
        ended = run([sys.executable, "-c", script], 60.0, environment())
        assert ended.status == -9
        assert len(ended.output) <= 1024


def test_how_a_program_ended_is_told(tmp_path: Path) -> None:
    script = "import sys; print(sys.stdin.read()); sys.stderr.write('first\\nlast'); sys.exit(3)"
    ended = run([sys.executable, "-c", script], 30.0, environment(), tmp_path, b"given")
    assert (ended.status, ended.output, ended.size) == (3, b"given\n", 6)
    assert ended.errors == ["first", "last"]
    with pytest.raises(subprocess.TimeoutExpired):
        run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2, environment())
    with pytest.raises(OSError, match="No such file"):
        run(["/nowhere/tool"], 1.0, environment())
