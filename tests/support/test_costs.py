"""The table of what tests cost: what it adds up, and that it holds in two processes."""

from __future__ import annotations

import re

import pytest

from tests.support.costs import Cost, by_file, table

BURNS = """
import os, subprocess, sys, time
import pytest

BURN = "import time; end = time.process_time() + {}\\nwhile time.process_time() < end: pass"

@pytest.fixture
def fixture():
    subprocess.run([sys.executable, "-c", BURN.format(0.5)], check=True)

def test_its_fixture_burns_in_a_child(fixture):
    pass

def test_it_waits():
    time.sleep(0.4)
"""


def test_the_most_expensive_come_first_and_the_total_counts_all() -> None:
    by_test = {"a": Cost(9, 1), "b": Cost(1, 3), "c": Cost(0, 2)}
    head, *lines, total = table(by_test, slowest=2)
    assert [line.split() for line in lines] == [["3.0", "1.0", "b"], ["2.0", "0.0", "c"]]
    assert total.split() == ["6.0", "10.0", "in", "all", "3", "tests"]
    assert head.split() == ["CPU", "s", "clock", "s"]


def test_a_file_costs_what_its_tests_cost() -> None:
    by_test = {"a.py::one": Cost(1, 2), "a.py::two[a::b]": Cost(3, 4), "b.py::one": Cost(5, 6)}
    assert by_file(by_test) == {"a.py": Cost(4, 6), "b.py": Cost(5, 6)}


@pytest.mark.parametrize("processes", [(), ("--numprocesses=2",)], ids=["one", "two"])
def test_a_child_of_a_fixture_counts_and_waiting_does_not(
    pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    pytester.makepyfile(BURNS)
    pytester.makeconftest(
        """
        from tests.support.costs import Costs

        def pytest_configure(config):
            config.pluginmanager.register(Costs(), "costs")
        """
    )
    printed = pytester.runpytest_inprocess(*processes).stdout.str()
    cost = {
        name: (float(cpu), float(clock))
        for cpu, clock, name in re.findall(r"^ +([\d.]+) +([\d.]+) .*::(\w+)$", printed, re.M)
    }
    cpu, clock = cost["test_its_fixture_burns_in_a_child"]
    assert cpu >= 0.5
    assert clock >= 0.5
    assert cost["test_it_waits"][0] < 0.3
    assert cost["test_it_waits"][1] >= 0.4
