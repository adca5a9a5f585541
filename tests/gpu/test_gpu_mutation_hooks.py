"""The hook that puts a bug into the draft graphs while they are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import mutation_hooks
from tests.gpu.mutation_hooks import MUTATION_VARIABLE
from tests.support.code_edits import Edit

HERE = Path(__file__).parents[1]


GRAPHS = """
class DraftGraphs:
    answer = 41
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path
    for part in mutation_hooks.PACKAGE.split("."):
        folder = folder / part
        folder.mkdir()
        (folder / "__init__.py").touch()
    (folder / "draft_graphs.py").write_text(GRAPHS, encoding="utf-8")
    return tmp_path


def run_hook(package: Path, script: str, *changes: Edit) -> Any:
    """Run a script in a process in which the package can be imported."""
    paths = [package, HERE.parent]
    asked = json.dumps({"name": "a bug", "changes": changes})
    return subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            MUTATION_VARIABLE: asked,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


ENGINE = """
from types import SimpleNamespace as Space
from tests.gpu import mutation_hooks
{before}
mutation_hooks.mutate()
from vllm.v1.spec_decode.draft_graphs.draft_graphs import DraftGraphs
{after}
drafter = Space(draft_graphs=DraftGraphs())
worker = Space(worker=Space(model_runner=Space(drafter=drafter)))
llm = Space(llm_engine=Space(model_executor=Space(driver_worker=worker)))
print(DraftGraphs.answer, mutation_hooks.check_mutated(llm))
"""


def script(before: str = "", after: str = "") -> str:
    return ENGINE.format(before=before, after=after)


ANSWER = ("draft_graphs.py", "DraftGraphs", "41", "42")


def test_the_mutated_module_is_the_one_that_runs(package: Path) -> None:
    ended = run_hook(package, script(), ANSWER)
    assert ended.stdout.splitlines() == [
        mutation_hooks.executed_line("draft_graphs.py", "a bug"),
        "42 ['draft_graphs.py']",
    ]
    found = package.joinpath(*mutation_hooks.PACKAGE.split("."), "draft_graphs.py")
    assert found.read_text(encoding="utf-8") == GRAPHS


def test_one_module_takes_several_changes(package: Path) -> None:
    ended = run_hook(
        package, script(), ANSWER, ("draft_graphs.py", "DraftGraphs", "answer = 42", "answer = 43")
    )
    assert "43 ['draft_graphs.py']" in ended.stdout


@pytest.mark.parametrize(
    ("hook", "change", "says"),
    [
        (script(), ("draft_graphs.py", "DraftGraphs", "40", "0"), "DraftGraphs holds 0 times"),
        (script(), ("draft_graphs.py", "Other", "41", "42"), "0 times, not once"),
        (
            script(before="import vllm.v1.spec_decode.draft_graphs.draft_graphs"),
            ANSWER,
            "imported before they could be mutated",
        ),
        (script(), ("other.py", "<module>", "a", "b"), "other.py is mutated by None, not 'a bug'"),
        (
            script(after="import sys, importlib; mutation_hooks.sys.meta_path.pop(0)\n"
            f"importlib.reload(sys.modules['{mutation_hooks.PACKAGE}.draft_graphs'])"),
            ANSWER,
            "is not that of the mutated package",
        ),
    ],
)  # fmt: skip
def test_it_fails_loudly_where_it_is_not(package: Path, hook: str, change: Edit, says: str) -> None:
    ended = run_hook(package, hook, change)
    assert ended.returncode == 1
    assert says in ended.stderr


def test_a_changed_module_that_is_nowhere_is_told(package: Path) -> None:
    hook = script(after="import vllm.v1.spec_decode.draft_graphs.other")
    ended = run_hook(package, hook, ("other.py", "<module>", "a", "b"))
    assert "other is to be mutated and cannot be found" in ended.stderr
