"""No command of a patch's life is silent while something takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.authoring import building, locating
from overlay.authoring.commands import edit, import_, port, prune
from overlay.report.progress import Meter
from tests.authoring.test_importing import CHANGE, RELEASES, Tree
from tests.support.cli import Cli
from tests.support.releases import serve


@pytest.fixture(autouse=True)
def releases(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, RELEASES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: Tree(name))


@pytest.fixture
def ours(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fix.diff").write_bytes(CHANGE)
    ours = tmp_path / "ours"
    assert cli(*importing(ours)).exit == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("overlay.report.progress.PATIENCE", 0.05)
    return ours


def importing(ours: Path, id_: str = "count-runs") -> tuple[object, ...]:
    return ("import", ours.parent / "fix.diff", "--id", id_, "--patches", ours)


def line_written(monkeypatch: pytest.MonkeyPatch, begin: str) -> Callable[[], object]:
    """What waits until progress wrote a line that begins so, for thirty seconds at most."""
    written, write = threading.Event(), Meter.line

    def line(meter: Meter, text: str) -> None:
        write(meter, text)
        if text.startswith(begin):
            written.set()

    monkeypatch.setattr(Meter, "line", line)
    return lambda: written.wait(30)


def slow(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, begin: str) -> None:
    """Let a function take long: until its line was written, however busy the machine is."""
    real = getattr(owner, name)
    wait_for_line = line_written(monkeypatch, begin)

    def wait(*arguments: object, **options: object) -> object:
        wait_for_line()
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, wait)


@pytest.mark.parametrize(
    ("owner", "name", "words", "line"),
    [
        (building, "carry", "import", "tried "),
        (building, "needed", "import", "importing again"),
        (import_, "place", "import", "importing again"),
        (edit, "find_feature", "edit", "editing count-runs"),
        (edit, "_at_hand", "new", "making other"),
        (port, "_select", "port", "carrying features"),
        (prune, "packages_of", "prune", "looking for what is not needed"),
        (edit, "lay_out", "edit", "laying out files of vLLM 0.22.0"),
        (edit, "lay_out", "new", "laying out files of vLLM 0.24.0"),
        (locating, "plan", "prune", "examined "),
        (port, "with_gaps", "port", "carried "),
    ],
)
def test_it_is_said_what_takes_long(
    cli: Cli,
    ours: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    words: str,
    line: str,
) -> None:
    slow(monkeypatch, owner, name, line)
    commands: dict[str, tuple[object, ...]] = {
        "import": importing(ours, "again"),
        "edit": ("edit", "count-runs", "--patches", ours),
        "new": ("new", "other", "--file", "vllm/v1/runner.py", "--patches", ours),
        "prune": ("prune", "--patches", ours),
        "port": ("port", "count-runs", "--releases", "0.20.0", "--patches", ours),
    }
    result = cli(*commands[words])
    assert any(each.startswith(line) for each in result.err.splitlines()), result.err


def test_a_release_that_takes_long_is_named(
    cli: Cli, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_line = line_written(monkeypatch, "reading vLLM 0.2")

    def resolve(name: str, **_: object) -> Tree:
        wait_for_line()
        return Tree(name)

    monkeypatch.setattr("overlay.targets.resolution.resolve", resolve)
    result = cli(*importing(ours, "again"))
    assert "reading vLLM 0.2" in result.err
