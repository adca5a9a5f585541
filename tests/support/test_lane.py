"""The fast lane: what it leaves out, and that whoever asks for more gets it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.lane import in_lane

TESTS = Path(__file__).resolve().parents[1]
FILES = {
    "test_quick": """
        import pytest

        def test_law():
            pass

        @pytest.mark.engine
        def test_with_an_engine():
            pass

        @pytest.mark.network
        def test_with_an_index():
            pass

        class TestLong:
            pytestmark = [pytest.mark.slow]

            def test_long(self):
                pass
    """,
    "test_processes": """
        import subprocess

        def test_in_a_process():
            pass
    """,
    "test_disk": """
        from tests.support import faults, transactions

        def test_a_full_disk():
            pass
    """,
}
LANE = {"test_law"}
WHOLE = LANE | {
    *("test_with_an_engine", "test_with_an_index", "test_long"),
    *("test_in_a_process", "test_a_full_disk"),
}


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    marks = "\n".join(f"    {mark}: as said" for mark in ("engine", "network", "slow"))
    pytester.makeini(f"[pytest]\ntestpaths = tests\nmarkers =\n{marks}\n")
    pytester.makeconftest(
        """
        pytest_plugins = ["tests.support.lane"]

        def pytest_addoption(parser):
            parser.addoption("--thorough", action="store_true")
        """
    )
    folder = pytester.mkdir("tests")
    pytester.makepyfile(**FILES)
    for name in FILES:
        (pytester.path / f"{name}.py").rename(folder / f"{name}.py")
    return pytester


def ran(suite: pytest.Pytester, arguments: Sequence[str]) -> set[str]:
    """The names of the tests that passed; no other outcome is there."""
    result = suite.runpytest_subprocess("-v", "-p", "no:cacheprovider", *arguments)
    assert result.ret == 0, result.stdout.str()
    lines = [line for line in result.outlines if "PASSED" in line]
    return {name for name in WHOLE if any(f"::{name}" in line for line in lines)}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), LANE),
        (("-n0",), LANE),
        (("--whole",), WHOLE),
        (("--whole", "-n2"), WHOLE),
        (("--thorough",), WHOLE),
        (("tests",), WHOLE),
        (("tests/test_disk.py",), {"test_a_full_disk"}),
        (("tests/test_quick.py::TestLong::test_long",), {"test_long"}),
        (("-k", "process or law"), {"test_in_a_process", "test_law"}),
        (("-m", "network"), {"test_with_an_index"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_only_where_nothing_is_named_something_is_left_out(
    suite: pytest.Pytester, arguments: tuple[str, ...], expected: set[str]
) -> None:
    assert ran(suite, arguments) == expected


def test_the_lane_says_that_it_is_not_everything(suite: pytest.Pytester) -> None:
    told = "the fast lane: no engine, no index, no injected fault"
    assert told in suite.runpytest_subprocess("--collect-only").stdout.str()
    assert told not in suite.runpytest_subprocess("--collect-only", "--whole").stdout.str()


def test_of_our_own_files_those_with_faults_and_processes_are_left_out() -> None:
    dear = (
        "on_disk/test_faults.py test_packaging.py commands/test_cli.py in_memory/test_bypassed.py"
    )
    for name in dear.split():  # the last one by a helper of its helper
        assert not in_lane(TESTS / name), name
    for name in ("planning/test_laws.py", "on_disk/test_ledger.py", "test_errors.py"):
        assert in_lane(TESTS / name), name
