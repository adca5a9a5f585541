"""Plugins and settings of the whole test suite."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import rested_collector, shared_memory
from tests.support.costs import Costs

pytest_plugins = ["tests.engine.engine_fixtures", "tests.support.lane", "pytester"]

# A job in a shell's background ignores Ctrl-C, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each process of tests has a core: threads of PyTorch's own would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# vLLM compiles some small functions to C++ in each engine that calls them, which takes longer than
# the engine; no patch is in one of them.
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
if not (REPOSITORY / "bench").is_dir():
    # An unpacked source distribution: these look at what stays in the repository (pyproject.toml).
    collect_ignore = [
        "authoring/test_drawn_changes.py",
        "authoring/test_needed_context.py",
        "report/test_page.py",
    ]
#: The files that take most of the CPU, the most first: processes that take one file after the other
#: then end at about the same time. Before them come three that need no engine: its environment may
#: still be in the making.
LONGEST = {
    name: place
    for place, name in enumerate(
        (
            "on_disk/test_faults.py",
            "test_all_releases.py",
            "docs/test_keeping_up.py",
            "engine/test_with_vllm.py",
            "draft_graphs/test_engine_graphs.py",
            "draft_graphs/test_data_parallel.py",
            "in_memory/test_engine_memory.py",
            "in_memory/test_ray.py",
            "fuzz/test_fuzz.py",
            "draft_graphs/test_mutations.py",
            "draft_graphs/test_same_as_upstream.py",
            "engine/test_engine_unchanged.py",
            "ascend/test_twin.py",
            "engine/test_mends.py",
            "draft_graphs/test_drafter_graphs.py",
            "draft_graphs/test_weights_again.py",
            "in_memory/test_external_launcher.py",
            "draft_graphs/test_hybrid_graphs.py",
            "commands/test_killed.py",
            "draft_graphs/test_micro_batches.py",
            "in_memory/test_hazards.py",
            "draft_graphs/test_verify_engine.py",
            "draft_graphs/test_verify_v2.py",
            "draft_graphs/test_unequal_ranks.py",
            "authoring/commands/test_port_killed.py",
            "draft_graphs/test_facts_releases.py",
            "test_packaging.py",
            "proof/commands/test_verify.py",
            "features/test_shipped_features.py",
            "commands/test_every_call.py",
            "proof/commands/test_bench.py",
            "on_disk/test_swapped.py",
            "authoring/commands/test_port.py",
            "planning/test_laws.py",
            "docs/test_commands_run.py",
            "docs/test_tutorial.py",
            "in_memory/test_doctor.py",
            "on_disk/test_two_packages.py",
            "commands/test_bad_inputs.py",
        )
    )
}

# No deadlines: how long examples take says more about what else the machine does than about
# the code.  CI draws the same examples on every run, besides those that tests name; `--thorough`
# draws new ones, and the fast lane fewer.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=UNHURRIED, derandomize=True)
settings.register_profile("thorough", parent=UNHURRIED, print_blob=True)
settings.register_profile("mutants", parent=UNHURRIED, derandomize=True, max_examples=30)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="the tests marked so, too (they take long)"
    )
    parser.addoption("--costs", action="store_true", help="print what the slowest tests cost")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs(), "costs")
    if config.getoption("--hypothesis-profile") is None:
        lane = config.pluginmanager.get_plugin("tests.support.lane")
        beside = "lane" if lane.names_nothing(config) else "ci"
        settings.load_profile("thorough" if config.getoption("--thorough") else beside)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what pytest makes of the modules of tests, also where no bytecode is to be written.

    It rewrites their assertions, which takes as long as a tenth of the fast lane.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Stable, so that the tests of a file keep their order.
    items.sort(key=lambda item: LONGEST.get(item.path.relative_to(TESTS).as_posix(), len(LONGEST)))
    if config.getoption("--thorough"):
        return
    left_out = [item for item in items if "thorough" in item.keywords]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if "thorough" not in item.keywords]


@pytest.fixture(scope="session", autouse=True)
def modules_are_no_garbage() -> None:
    """The collector passes over what collection made, and rests: it took a tenth of the lane."""
    gc.freeze()
    gc.set_threshold(*rested_collector.THRESHOLDS)


@pytest.fixture(scope="session", autouse=True)
def temporary_files() -> Iterator[None]:
    """What the tests and their processes leave among temporary files goes at the end.

    The path is short because sockets of vLLM's and Ray's are put there: a path of theirs may have
    107 bytes, which the folder that pytest gives each of its processes would exceed.
    """
    folder = tempfile.mkdtemp(prefix="t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    shutil.rmtree(folder, ignore_errors=True)  # what a dying process still writes may stay


@pytest.fixture(scope="session", autouse=True)
def no_shared_memory_left() -> Iterator[None]:
    """What killed engines leave there goes at the end, since no process does away with it."""
    before = shared_memory.present()
    yield
    shared_memory.remove(shared_memory.present() - before, shared_memory.mapped())


@pytest.fixture(scope="session", autouse=True)
def nothing_left_in_the_repository() -> Iterator[None]:
    """No test writes beside the sources, where another one would take it for a source."""
    before = set(os.listdir(REPOSITORY))
    yield
    left = {name for name in set(os.listdir(REPOSITORY)) - before if not name.startswith(".")}
    assert not left, f"tests left these in {REPOSITORY}: {', '.join(sorted(left))}"
