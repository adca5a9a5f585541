"""The JSON of every command, in every state that users meet, is as the published schema says."""

import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.commands.apply import ApplyReport
from overlay.commands.check import CheckReport
from overlay.commands.diff import DiffReport
from overlay.commands.live import ProcessesReport
from overlay.commands.revert import RevertReport
from overlay.commands.status import StatusReport
from overlay.report import failure
from overlay.report.as_json import SCHEMA, as_data
from overlay.report.codes import Code, Exit, Verdict
from overlay.report.model import Obstacle, TargetReport
from overlay.results import Reason, State
from scripts import render_json_keys
from tests.report.test_as_text import targets
from tests.support.cli import ADDED, PROPOSER, Cli

DOCUMENT = json.loads(
    resources.files("overlay.report").joinpath(f"schema-{SCHEMA}.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(DOCUMENT)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"


def edit(site: Path) -> None:
    """Edit a patched file."""
    file = site / PROPOSER
    file.write_text(file.read_text() + "# edited\n")


STATES: dict[str, Callable[[Path], object]] = {
    "applied": Path.exists,
    "edited": edit,
    "file removed": lambda site: (site / PROPOSER).unlink(),
    "module removed": lambda site: (site / ADDED).unlink(),
    "ledger damaged": lambda site: (site / ".vllm-overlay/ledger.json").write_text("{"),
    "ledger removed": lambda site: (site / ".vllm-overlay/ledger.json").unlink(),
    "journal damaged": lambda site: (site / ".vllm-overlay/journal.json").write_text("{"),
    "another release": lambda site: (site / "vllm/_version.py").write_text(
        "__version__ = version = '0.99.0'\n"
    ),
}

COMMANDS = (
    "check SITE",
    "check SITE SITE/vllm",
    "status SITE",
    "status SITE --require all",
    "diff SITE",
    "apply --dry-run SITE",
    "apply SITE",
    "status SITE",
    "adopt SITE",
    "revert SITE",
    "check 0.26.0 --feature none",
    "apply 0.26.0",
    "status NOWHERE",
    "list",
    "nothing",
)


def valid(data: Any) -> None:
    """Demand that an answer is as the schema says.

    :raises jsonschema.ValidationError: where it is not.
    """
    VALIDATOR.validate(data)
    assert data["exit"] == Code(data["code"]).exit


def test_the_schema_is_one_and_lists_every_code_and_state() -> None:
    jsonschema.Draft202012Validator.check_schema(DOCUMENT)
    assert DOCUMENT["properties"]["schema"] == {"const": SCHEMA}
    assert DOCUMENT["$defs"]["code"]["enum"] == [code.value for code in Code]
    assert DOCUMENT["$defs"]["state"]["enum"] == [state.value for state in State]


@pytest.mark.parametrize("state", STATES)
def test_every_command_answers_as_the_schema_says(state: str, cli: Cli, site: Path) -> None:
    assert cli("apply", site).exit == 0
    STATES[state](site)
    for command in COMMANDS:
        words = command.replace("SITE", str(site)).replace("NOWHERE", str(site / "none")).split()
        answer = cli(*words, "--json")
        valid(answer.json)
        assert answer.exit == answer.json["exit"]


def test_a_fresh_target_and_several_answer_as_the_schema_says(cli: Cli, site: Path) -> None:
    for words in (["check", site], ["status", site], ["diff", site], ["revert", site], ["doctor"]):
        valid(cli(*words, "--json").json)
    valid(cli("status", "--live", "--json").json)
    valid(cli("status", "--live", "--require", "demo", "--json").json)
    valid(cli("report", site, "--no-matrix", "--json").json)
    valid(cli("cache", "size", "--json").json)
    valid(cli("cache", "clean", "--json").json)


@given(targets(), targets(), st.booleans())
def test_every_report_is_as_the_schema_says(
    one: TargetReport, other: TargetReport, needy: bool
) -> None:
    code = Code.NEEDS_ATTENTION if needy else Code.APPLIED
    verdict = Verdict(code, "So it is.")
    obstacle = Obstacle(Code.COPIES_DAMAGED, "a copy is damaged", Reason("why", "what"))
    stuck = TargetReport(one.target, one.vllm, one.root, one.features, obstacles=(obstacle,))
    for report in (
        CheckReport(verdict, (one, other)),
        StatusReport(verdict, stuck),
        ApplyReport(verdict, one, ("vllm/a.py",)),
        RevertReport(verdict, one),
        DiffReport(verdict, one, b"diff --git a/x b/x\n\xff"),
        ProcessesReport(verdict, ()),
        failure("check", "no vLLM here"),
    ):
        data = as_data(report)
        valid(data)
        assert json.loads(json.dumps(data)) == data


def test_a_needy_hunk_says_what_to_do(cli: Cli, site: Path) -> None:
    file = site / PROPOSER
    file.write_text(file.read_text().replace("self._first(tokens)", "self._second(tokens)"))
    answer = cli("check", site, "--json").json
    assert (answer["exit"], answer["code"]) == (1, "needs-attention")
    hunks = [
        hunk
        for feature in answer["targets"][0]["features"]
        for file in feature["files"]
        for hunk in file["hunks"]
        if State(hunk["state"]).needs_attention
    ]
    assert hunks
    assert all(hunk["reason"] and hunk["next"] for hunk in hunks)


def test_what_is_applied_is_said_of_the_target(cli: Cli, site: Path) -> None:
    before = cli("status", site, "--json").json["targets"][0]
    assert (before["state"], before["applied"]) == ("pristine", [])
    cli("apply", site)
    after = cli("status", site, "--json").json["targets"][0]
    assert (after["state"], after["applied"]) == ("applied", ["demo"])


def test_every_code_has_an_exit_status_and_stands_in_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    page = page.partition("## Codes")[2]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([0-2]) \|", page, re.MULTILINE))
    assert rows == {code.value: str(int(code.exit)) for code in Code}
    assert {code.exit for code in Code} == {Exit.OK, Exit.ATTENTION, Exit.ERROR}


def test_the_appendix_has_every_key_as_the_schema_does() -> None:
    page = render_json_keys.PAGE.read_text(encoding="utf-8")
    assert page == render_json_keys.page(), "run scripts/render_json_keys.py"
    keys = set(DOCUMENT["properties"])
    for part in DOCUMENT["$defs"].values():
        keys |= set(part.get("properties", {}))
    keys |= set(DOCUMENT["properties"]["cache"]["properties"])
    missing = sorted(key for key in keys if not re.search(rf"[`.]{key}`", page))
    assert missing == []
