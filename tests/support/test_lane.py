"""The fast lane: what it leaves out, and that whoever asks for more gets it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.lane import EXAMPLES, MOST, in_lane, is_local

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
    "test_marked": """
        import pytest

        pytestmark = [
            pytest.mark.slow,
        ]
        with open("imported", "a") as file:
            file.write("once")

        def test_of_a_marked_file():
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
    *("test_in_a_process", "test_a_full_disk", "test_of_a_marked_file"),
}


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("OVERLAY_CACHE", str(pytester.path / "cache"))
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
    # There, a file that is marked as a whole is not even imported.
    assert expected != LANE or not (suite.path / "imported").exists()


#: What no test of the lane may do, and what it is told then.
DEEDS = {
    "runs": ("__import__('subprocess').run(['true'])", "starts a process*mark it `slow`"),
    "spawns": ("__import__('os').posix_spawn('/bin/true', ['true'], {})", "starts a *`slow`"),
    "opens": ("open(CACHE / 'releases/vllm-0.26.0.zip')", "opens a release of the index*`network`"),
    "speaks": ("__import__('socket').socket().connect(('192.0.2.1', 80))", "speaks *`network`"),
}


@pytest.mark.parametrize("arguments", [(), ("--whole",)], ids=["lane", "whole"])
def test_a_test_of_the_lane_is_held_to_its_kind(
    suite: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    """Also in CI, which runs everything; there a test that is marked may do all this."""
    lines = ["import pytest", "from overlay.cache import cache_folder", "CACHE = cache_folder()"]
    for name, (deed, _) in DEEDS.items():
        body = ["    try:", f"        {deed}", "    except OSError: pass"]
        lines += [f"def test_{name}():", *body]
        if name != "speaks":
            lines += ["@pytest.mark.slow", f"def test_marked_{name}():", *body]
    for file in (suite.path / "tests").glob("test_*.py"):
        file.unlink()
    (suite.path / "tests/test_it.py").write_text("\n".join(lines) + "\n")
    done = suite.runpytest_subprocess("-n0", *arguments)
    done.assert_outcomes(failed=4, passed=3 if arguments else 0, deselected=0 if arguments else 3)
    for name, (_, told) in DEEDS.items():
        done.stdout.fnmatch_lines(f"*tests/test_it.py::test_{name} {told}*")


def test_what_is_on_this_machine() -> None:
    assert all(map(is_local, (("127.0.0.1", 80), ("::1", 80, 0, 0), "/run/socket", b"socket")))
    assert not is_local(("files.example.org", 443))


def test_laws_draw_few_examples_in_the_lane(suite: pytest.Pytester) -> None:
    """However many they ask for; CI fifty of each, and all of them with ``--thorough``."""
    (suite.path / "tests/test_laws.py").write_text(
        "from hypothesis import given, settings, strategies as st\n"
        "drawn = []\n"
        "@settings(max_examples=150, derandomize=True)\n"
        "@given(st.integers())\n"
        "def test_law(number):\n"
        "    drawn.append(number)\n"
        "class TestLaw:\n"
        "    @settings(max_examples=50, derandomize=True)\n"
        "    @given(st.integers())\n"
        "    def test_law(self, number):\n"
        "        drawn.append(number)\n"
        "def test_how_many():\n"
        "    print('drawn', len(drawn))\n"
    )
    every, whole = 150 + 50, MOST + 50
    cases = (((), 2 * EXAMPLES), (("--whole",), whole), (("--whole", "--thorough"), every))
    for arguments, number in cases:
        result = suite.runpytest_subprocess("-n0", "-s", "-p", "no:cacheprovider", *arguments)
        assert result.ret == 0
        result.stdout.fnmatch_lines(f"*drawn {number}*")


def test_the_lane_says_that_it_is_not_everything(suite: pytest.Pytester) -> None:
    told = "the fast lane: no engine, no index, no injected fault"
    assert told in suite.runpytest_subprocess("--collect-only").stdout.str()
    assert told not in suite.runpytest_subprocess("--collect-only", "--whole").stdout.str()


def test_of_our_own_files_those_with_faults_processes_and_marks_are_left_out() -> None:
    dear = (
        "on_disk/test_faults.py test_packaging.py commands/test_cli.py draft_graphs/test_hooks.py "
        "draft_graphs/test_every_size.py in_memory/test_bypassed.py"
    )
    for name in dear.split():  # the last one by a helper of its helper
        assert not in_lane(TESTS / name), name
    for name in ("planning/test_laws.py", "on_disk/test_ledger.py", "test_errors.py"):
        assert in_lane(TESTS / name), name
