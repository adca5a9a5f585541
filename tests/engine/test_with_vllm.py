"""Run, in the engine's environment, the test modules that import PyTorch or vLLM themselves.

All of them run in one process, because importing vLLM takes as long as most of them.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.engine.engine_fixtures import needs_vllm

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests").rglob("test_*.py")
    if path != Path(__file__) and needs_vllm(path)
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is not None, reason="they are run right here"),
]


@dataclass(frozen=True)
class Session:
    """One run of pytest over all modules.

    :ivar status: its exit status.
    :ivar output: what it printed.
    :ivar outcomes: for each module, how many tests passed, failed or were skipped.
    """

    status: int
    output: str
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)


def read_outcomes(report: Path) -> dict[str, Counter[str]]:
    """Count the outcomes of each module in a JUnit report of pytest's (family xunit1)."""
    outcomes: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        module = outcomes.setdefault(case.attrib["file"], Counter())
        module.update(kinds or {"passed"})
    return outcomes


@pytest.fixture(scope="module")
def session(
    engine_python: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Session:
    # Those that were asked for, as with -k.
    modules = [
        item.callspec.params["module"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == test_a_module_that_imports_vllm.__name__
    ]
    folder = tmp_path_factory.mktemp("with-vllm")
    report = folder / "report.xml"
    command = [
        *(str(engine_python), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("--junit-xml", str(report), "-o", "junit_family=xunit1"),
        *("--basetemp", str(folder / "temporary")),
        *(each for each in ("--whole", "--thorough") if request.config.getoption(each)),
        *(modules or MODULES),
    ]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=3600,
    )
    outcomes = read_outcomes(report) if report.is_file() else {}
    return Session(ended.returncode, ended.stdout, outcomes)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_imports_vllm(session: Session, module: str) -> None:
    outcomes = session.outcomes.get(module)
    assert outcomes is not None, f"no test of {module} ran:\n{session.output}"
    assert set(outcomes) == {"passed"}, session.output


def test_the_run_as_a_whole_succeeded(session: Session) -> None:
    """What fails outside of any test shows in the exit status only."""
    assert session.status == 0, session.output
