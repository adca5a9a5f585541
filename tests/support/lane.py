"""The fast lane: what a plain ``pytest`` runs; ``--whole`` runs everything.

A plugin of pytest.  Whoever names a file, a folder or a test, or chooses with ``-k`` or ``-m``,
gets what was asked for.  Only where nothing is named are left out: tests that are marked as in need
of an engine or an index, or as slow; and whole files that inject faults, start processes or run
whole commands, which their imports and those of their helpers tell, so that nobody keeps a list and
such a file is not even imported.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

MARKS = frozenset({"engine", "network", "slow", "thorough"})
#: What starts processes, meets a fault at each system call in turn, or runs whole commands.
_DEAR = "subprocess multiprocessing fork faults audited Cli Pytester".split()
_NAMES_DEAR = re.compile(
    rf"^\s*(import|from) .*\b({'|'.join(_DEAR)})\b|\b(os\.fork|Pytester)\b", re.M
)
_HELPERS = re.compile(r"^from (tests[\w.]*) import ([(\w, ]+(?:[^)]*\))?)", re.MULTILINE)
ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the marked tests of other files."""
    if not names_nothing(config):
        return
    chosen, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        marked = MARKS & {mark.name for mark in item.iter_markers()}
        (left_out if marked else chosen).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say that this is not everything."""
    told = "the fast lane: no engine, no index, no injected fault; all: python3 scripts/test.py"
    return [told] if names_nothing(config) else []
