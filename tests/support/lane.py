"""The fast lane: what a plain ``pytest`` runs; ``--whole`` runs everything.

A plugin of pytest.  Whoever names a file, a folder or a test, or chooses with ``-k`` or ``-m``,
gets what was asked for.  Only where nothing is named are left out: tests that are marked as in need
of an engine or an index, or as slow; and whole files that inject faults, start processes or run
whole commands, which their imports and those of their helpers tell, so that nobody keeps a list.
Such a file is not even imported, nor is one that is marked as a whole (``pytestmark``).  Laws are
tried with ``EXAMPLES`` examples, however many they ask for, and with ``MOST`` where all tests run
without ``--thorough``.

Wherever a test of the lane runs, in CI too, it fails as soon as it starts a process, speaks to
another machine or opens a release of the index: it has to be marked then.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from overlay.cache import cache_folder

#: How many examples of a law the lane tries at most; and CI, which draws the same ones each time.
EXAMPLES, MOST = 10, 50
settings.register_profile(
    "lane",
    deadline=None,
    derandomize=True,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
MARKS = frozenset({"engine", "network", "slow", "thorough"})
#: What starts processes, meets a fault at each system call in turn, or runs whole commands.
_DEAR = "subprocess multiprocessing fork faults audited Cli Pytester".split()
_NAMES_DEAR = re.compile(
    rf"^\s*(import|from) .*\b({'|'.join(_DEAR)})\b|\b(os\.fork|Pytester)\b"
    rf"|^pytestmark = (\[[^]]*|.*)\bmark\.({'|'.join(sorted(MARKS))})\b"
    r"|^(\w+(: \w+)? = )?pytest\.importorskip\(",  # it runs beside vLLM, which starts processes
    re.M,
)
_HELPERS = re.compile(r"^from (tests[\w.]*) import ([(\w, ]+(?:[^)]*\))?)", re.MULTILINE)
ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
#: Audited events of starting a process.
_STARTS = frozenset(
    "subprocess.Popen os.fork os.forkpty os.posix_spawn os.spawn os.system os.exec".split()
)
_LOCAL = ("127.", "::1", "localhost")


@functools.cache
def in_lane(test_module: Path) -> bool:
    """Whether no import of a test module, or of the helpers it imports, tells that it is dear."""
    seen, waiting = set[Path](), [test_module]
    while waiting:
        module = waiting.pop()
        dear, helpers = _imports(module)
        if dear:
            return False
        seen.add(module)
        waiting += helpers - seen
    return True


@functools.cache
def _imports(module: Path) -> tuple[bool, frozenset[Path]]:
    """Whether a module imports what is dear, and the files below ``tests`` that it imports."""
    text = module.read_text(encoding="utf-8")
    named = set[str]()
    for package, names in _HELPERS.findall(text):
        named |= {package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))}
    files = (ROOT / f"{name.replace('.', '/')}.py" for name in named)
    dear = _NAMES_DEAR.search(text) is not None
    return dear, frozenset(file for file in files if file.is_file())


def names_nothing(config: pytest.Config) -> bool:
    """Whether pytest was called without a file, a folder, a test or a choice of them.

    Processes of xdist are called with the arguments of the one that starts them.
    """
    option = config.option
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not (named or option.keyword or option.markexpr or option.whole or option.thorough)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what asks for everything."""
    parser.addoption(
        "--whole", action="store_true", help="all tests, where none is named; not the fast lane"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the lane between two processes, unless the caller says how many."""
    alone = hasattr(config, "workerinput") or config.option.collectonly or config.option.usepdb
    unsaid = getattr(config.option, "numprocesses", 0) is None  # and xdist is there
    if names_nothing(config) and unsaid and not alone:
        config.option.numprocesses = PROCESSES
        config.option.dist = "worksteal"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files."""
    dear = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if dear and names_nothing(config) and not in_lane(collection_path) else None


def is_marked(item: pytest.Item) -> bool:
    """Whether a mark leaves a test out of the lane."""
    return not MARKS.isdisjoint(mark.name for mark in item.iter_markers())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the marked tests of other files, and let laws draw few examples."""
    if not names_nothing(config):
        if config.option.whole and not config.option.thorough:
            for item in items:
                draw_few(getattr(item, "obj", None), MOST)
        return
    config.hook.pytest_deselected(items=[item for item in items if is_marked(item)])
    items[:] = [item for item in items if not is_marked(item)]
    for item in items:
        draw_few(getattr(item, "obj", None))


def is_local(address: object) -> bool:
    """Whether an address of a socket is on this machine."""
    return not isinstance(address, tuple) or str(address[0]).startswith(_LOCAL)


def draw_few(test: Any, most: int = EXAMPLES) -> None:
    """Let a test that is a law draw so many examples at most.

    Hypothesis has no public way to change what a decorator said; a test of this module tells where
    this one has gone.
    """
    law = getattr(test, "__func__", test)
    asked = getattr(law, "_hypothesis_internal_use_settings", None)
    if asked is not None:
        few = min(asked.max_examples, most)
        law._hypothesis_internal_use_settings = settings(asked, max_examples=few)


class Keeper:
    """Holds tests of the lane to its kind: what they may not do fails at once.

    :ivar running: the id of the test that runs and is in the lane, if there is one.
    """

    def __init__(self) -> None:
        self.running = ""
        self._releases = str(cache_folder() / "releases")
        self._watching = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch a test and what sets it up, if it is in the lane."""
        if is_marked(item) or not in_lane(item.path):
            return (yield)
        if not self._watching:  # an audit hook stays for good
            sys.addaudithook(self.audit)
            self._watching = True
        self.running = item.nodeid
        try:
            return (yield)
        finally:
            self.running = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Watch no longer: the last test of a process also ends what others needed."""
        self.running = ""

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Fail the test that runs if an event is none for the lane."""
        if not self.running:
            return
        if event in _STARTS:
            self._fail("starts a process", "slow")
        elif event == "open" and str(arguments[0]).startswith(self._releases):
            self._fail("opens a release of the index", "network")
        elif event == "socket.connect" and not is_local(arguments[1]):
            self._fail(f"speaks to {arguments[1]}", "network")

    def _fail(self, deed: str, mark: str) -> NoReturn:
        test, self.running = self.running, ""
        pytest.fail(f"{test} {deed}, and is in the fast lane: mark it `{mark}`", pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    """Watch the tests of the lane in whichever process runs tests."""
    config.pluginmanager.register(Keeper(), "keeper of the lane")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say that this is not everything."""
    told = "the fast lane: no engine, no index, no injected fault; all: python3 scripts/test.py"
    return [told] if names_nothing(config) else []
