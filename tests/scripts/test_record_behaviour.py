"""The commands answer as they are recorded, and the recording notices where one does not.

CI compares a few parts; ``--thorough`` all of them.  What is recorded is the law of a step that
moves code and must change no answer: ``scripts/record_behaviour.py --check`` after each commit.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recording import stored, worker
from tests.recording.lives import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
#: The parts that CI compares: of a state, and of the life of a patch.
QUICK = ("states/applied", "import")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", ROOT / "scripts/record_behaviour.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_few_parts_are_as_recorded(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.check(script.record(QUICK)) == 0, capsys.readouterr().out


@pytest.mark.thorough  # what CI does with a few parts, with all of them
@pytest.mark.network
@pytest.mark.slow
def test_all_parts_are_as_recorded(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.check(script.record(list(worker.parts()))) == 0, capsys.readouterr().out


def test_a_changed_sentence_is_noticed_wherever_home_and_temporary_files_lie(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One word in one sentence of an overlay in another folder: exactly its answers differ."""
    code = tmp_path / "a longer name/checkout"
    for name in ("overlay", "patches"):
        shutil.copytree(ROOT / name, code / name)
    shutil.copy2(ROOT / "pyproject.toml", code)
    sentence = "how large it is, or empty it."
    (wording,) = (file for file in code.rglob("*.py") if sentence in file.read_text())
    wording.write_text(wording.read_text().replace(sentence, sentence.replace(" or", " and")))
    for variable in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)
    assert script.check(script.record(["help"], code)) == 2
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("=== ")] == [
        "=== help: cache --help",
        "=== help: help cache",
    ]
    assert printed.count("+|   Say where the cache lies, how large it is, and empty it.") == 2


def test_every_part_and_every_command_is_recorded() -> None:
    """A command that is added without a recording would be outside of the law."""
    from overlay.cli import COMMANDS as PRESENT

    assert set(COMMANDS) == set(PRESENT)
    assert set(stored.load()) == set(worker.parts())
    assert sum(path.stat().st_size for path in stored.FOLDER.rglob("*.txt")) < 710_000


LINES = st.sampled_from(["| a", "|", "! b", "| " + 40 * "c", "| " + 40 * "d", "~ e 0", "| === f"])
ANSWERS = st.dictionaries(
    st.text("abc ", min_size=1).map(str.strip).filter(bool),
    st.tuples(st.integers(0, 2), st.lists(LINES, max_size=9)).map(
        lambda answer: [f"exit {answer[0]}", *answer[1]]
    ),
    max_size=5,
)


@given(answers=ANSWERS)
def test_what_is_stored_is_what_was_recorded(answers: dict[str, list[str]]) -> None:
    assert stored.decode(stored.encode(answers)) == answers


@given(answers=ANSWERS, line=LINES)
def test_a_line_more_is_a_difference_and_equal_answers_are_none(
    answers: dict[str, list[str]], line: str
) -> None:
    assert not list(stored.differences(answers, answers, "part"))
    for name, answer in answers.items():
        longer = {**answers, name: [*answer, line]}
        printed = list(stored.differences(answers, longer, "part"))
        assert printed[0] == f"=== part: {name}"
        assert f"+{line}" in printed
