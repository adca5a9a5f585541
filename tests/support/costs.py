"""What tests cost: seconds on the clock, and of CPU with all processes that they waited for.

A plugin of pytest. On a machine that does other things, too, only the CPU's seconds can be compared
between two runs. A fixture counts for the test that asked for it first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

SLOWEST = 10
SLOWEST_FILES = 30
_SECONDS_OF_CPU = "seconds_of_cpu"


@dataclass(frozen=True)
class Cost:
    """Seconds that a test took, its fixtures included.

    :ivar clock: on the clock. cpu: of the CPU, in this process and in its children.
    """

    clock: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.clock + other.clock, self.cpu + other.cpu)


#: Seconds of CPU that were spent for this process by one that it has not waited for yet.
_elsewhere = 0.0


def spent_elsewhere(seconds: float) -> None:
    """Count what a process that serves several tests did for the one that runs.

    Whoever ends that process takes it back: from then on the system counts it.
    """
    global _elsewhere  # noqa: PLW0603 - as the times of a process are
    _elsewhere += seconds


def cpu_seconds() -> float:
    """Seconds of CPU of this process, of children that it waited for, and of others for it."""
    times = os.times()
    waited = times.children_user + times.children_system
    return times.user + times.system + waited + _elsewhere


class Costs:
    """Adds up what each test costs, in one process or, from its reports, in several."""

    def __init__(self) -> None:
        self.by_test: dict[str, Cost] = {}
        self._last = cpu_seconds()

    def pytest_runtest_logstart(self) -> None:
        """Count from here: collecting and importing belong to no test."""
        self._last = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """Note in the report of each phase of a test the CPU's seconds since the one before."""
        report = yield
        now = cpu_seconds()
        setattr(report, _SECONDS_OF_CPU, now - self._last)
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test, from whichever process."""
        cost = Cost(report.duration, getattr(report, _SECONDS_OF_CPU, 0.0))
        self.by_test[report.nodeid] = self.by_test.get(report.nodeid, Cost()) + cost

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the tables of tests and of files."""
        terminalreporter.section(f"the {SLOWEST} slowest tests")
        for line in table(self.by_test):
            terminalreporter.line(line)
        terminalreporter.section(f"the {SLOWEST_FILES} slowest files")
        for line in table(by_file(self.by_test), SLOWEST_FILES, of="files"):
            terminalreporter.line(line)


def by_file(by_test: Mapping[str, Cost]) -> dict[str, Cost]:
    """Add up what the tests of each file cost."""
    files: dict[str, Cost] = {}
    for test, cost in by_test.items():
        file = test.partition("::")[0]
        files[file] = files.get(file, Cost()) + cost
    return files


def table(costs: Mapping[str, Cost], slowest: int = SLOWEST, of: str = "tests") -> list[str]:
    """The tests or files that took most of the CPU, the most first, and the total.

    :returns: lines of seconds of CPU, seconds on the clock, and the test or file.
    """
    ranked = sorted(costs.items(), key=lambda entry: -entry[1].cpu)
    lines = ["    CPU s   clock s"]
    lines += [f"{cost.cpu:9.1f} {cost.clock:9.1f} {name}" for name, cost in ranked[:slowest]]
    total = sum(costs.values(), Cost())
    return [*lines, f"{total.cpu:9.1f} {total.clock:9.1f} in all {len(costs)} {of}"]
