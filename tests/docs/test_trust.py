"""What SECURITY.md and the page about compatibility claim is held by tests, or is the code's."""

from __future__ import annotations

import importlib.util
import re
from importlib import import_module
from pathlib import Path

import pytest

from overlay import _processes
from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.authoring import session
from overlay.on_disk import journal, ledger
from overlay.package import KNOWN_RELEASES
from overlay.report import as_json
from overlay.settings import FORMER_IDS

ROOT = Path(__file__).resolve().parents[2]
SECURITY = ROOT / "SECURITY.md"
COMPATIBILITY = ROOT / "docs/compatibility.md"
DEPRECATION = "\n## Deprecation\n"


def _rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, without the titles."""
    lines = text.splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("| ") and not after.startswith("|---")
    ]


def test_each_claim_about_security_names_tests_that_there_are() -> None:
    rows = _rows(SECURITY.read_text(encoding="utf-8"))
    assert len(rows) > 10
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)`", row[-1])
        assert tests, row
        for name in tests:
            assert "\ndef test_" in (ROOT / name).read_text(encoding="utf-8"), name


def test_no_address_is_invented() -> None:
    assert "@" not in SECURITY.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (SECURITY.read_text(encoding="utf-8"), 700),
        (COMPATIBILITY.read_text(encoding="utf-8").partition(DEPRECATION)[0], 500),
        (COMPATIBILITY.read_text(encoding="utf-8").partition(DEPRECATION)[2], 250),
    ],
    ids=["security", "compatibility", "deprecation"],
)
def test_it_is_short(text: str, most: int) -> None:
    assert len(text.split()) <= most


def test_the_schemas_are_those_of_the_code() -> None:
    page = COMPATIBILITY.read_text(encoding="utf-8")
    for words in (
        f"its ledger (schemas 1 to {ledger._DATA_SCHEMA})",
        f"interrupted command (schemas {journal.SCHEMA} and {journal._JOINT_SCHEMA})",
        f"a session of `edit`, `new` or `port` (schema {session.SCHEMA})",
        f"a running process (schema {_processes.SCHEMA})",
        f"JSON of schema {as_json.SCHEMA}",
        f"{KNOWN_RELEASES[0]} to {KNOWN_RELEASES[-1]}",
    ):
        assert words in page, words


#: The modules that warn of a former way to say something, beside those of options -> the way, and
#: what to write.
OTHERWISE = {
    "overlay/authoring/cli_port.py": ("`overlay port ID RELEASE`", "`--releases RELEASE`"),
    "overlay/cli/options.py": ("`overlay port` or `prune` without `--write`", "`--dry-run`"),
}


def test_whatever_warns_of_a_former_way_is_in_the_table() -> None:
    """The next test compares the table with these."""
    warns = re.compile(r"^from overlay\.cli import (\([^)]*|.*)\bwarn", re.MULTILINE)
    modules = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "overlay").rglob("*.py")
        if warns.search(file.read_text(encoding="utf-8"))
    }
    assert modules == OTHERWISE.keys()


def test_what_is_deprecated_is_what_the_code_takes_with_a_warning() -> None:
    table = _rows(COMPATIBILITY.read_text(encoding="utf-8").partition(DEPRECATION)[2])
    expected = [[f"id `{former}`", f"`{name}`"] for former, name in FORMER_IDS.items()]
    switches = [switch for each in load([shipped_folder()]) for switch in each.switches]
    former = [(each.name, each.deprecated) for each in switches]
    for name, values in [("OVERLAY_UNTESTED", (("0", "off"), ("1", "on"))), *former]:
        expected += [[f"value `{old}` of `{name}`", f"`{new}`"] for old, new in values]
    expected += [list(each) for each in OTHERWISE.values()]
    module = "overlay.cli"
    if importlib.util.find_spec(module) is None:
        table = [row for row in table if not row[0].startswith("option ")]
    else:
        expected += [
            [f"option `{each.former}` of `overlay {each.command}`", f"`{each.option}`"]
            for each in import_module(module).DEPRECATIONS
        ]
    assert sorted(table) == sorted(expected)
