"""`overlay show`, the groups of `list`, and the faults that `check` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.settings import FORMER_IDS
from tests.support.cli import PROPOSE, Cli
from tests.support.patches import write_feature

FAULT = """\
group = "mended"

[fault]
symptom = "The engine ends with Trouble."
affects = "every drafter"
reports = ["https://example.com/7"]
evidence = "A test."
page = "docs/mend.md"

[[switches]]
name = "OVERLAY_TEAM_MEND"
values = ["off", "on"]
default = "on"
text = "mends it"
"""
TOPICS = {"10-propose/0.20.0..0.33.0.patch": PROPOSE}


@pytest.fixture
def mend(cli: Cli) -> Path:
    """A team's own feature that says what it mends."""
    write_feature(cli.team, TOPICS, id="team-mend")
    file = cli.team / "team-mend" / "feature.toml"
    file.write_text(file.read_text() + FAULT)
    return cli.team


def test_one_screen_tells_the_fault_the_evidence_and_the_switch(cli: Cli, mend: Path) -> None:
    answer = cli("--patches", mend, "show", "team-mend")
    assert answer.exit == 0
    lines = answer.out.splitlines()
    assert len(lines) < 24
    for words in (
        "fault:    The engine ends with Trouble.",
        "affects:  every drafter",
        "reports:  https://example.com/7",
        "evidence: A test.",
        "switch:   OVERLAY_TEAM_MEND=off|on (default: on): mends it",
        "releases: 0.20.0..0.33.0 of vLLM",
    ):
        assert f"  {words}" in lines
    shown = cli("--patches", mend, "show", "team-mend", "--json").json["shown_feature"]
    assert shown["fault"]["symptom"] == "The engine ends with Trouble."
    assert (shown["group"], shown["switches"][0]["name"]) == ("mended", "OVERLAY_TEAM_MEND")


@pytest.mark.parametrize("name", sorted(each.id for each in load([shipped_folder()])))
def test_each_shipped_feature_is_told_on_one_screen(cli: Cli, name: str) -> None:
    """Of 40 lines, on a terminal of 100 columns."""
    lines = cli("show", name).out.splitlines()
    assert sum(max(1, -(-len(line) // 100)) for line in lines) <= 40


def test_a_feature_that_is_not_there_is_named_with_what_is(cli: Cli, mend: Path) -> None:
    answer = cli("--patches", mend, "show", "team-mnd")
    assert answer.exit == 2
    assert "ID team-mnd: expected one of" in answer.err
    assert "did you mean team-mend?" in answer.err


@pytest.mark.parametrize("former", FORMER_IDS)
@pytest.mark.parametrize("command", [("show",), ("export",), ("log", "--releases", "0.26.0")])
def test_an_id_that_a_feature_had_means_the_one_that_it_has(
    cli: Cli, mend: Path, former: str, command: tuple[str, ...]
) -> None:
    """Where an argument names it, as where an option does; what it means is said."""
    (mend / "team-mend").rename(mend / FORMER_IDS[former])
    toml = mend / FORMER_IDS[former] / "feature.toml"
    toml.write_text(toml.read_text().replace('"team-mend"', f'"{FORMER_IDS[former]}"'))
    answer = cli("--patches", mend, *command, former)
    assert answer.out
    assert answer.out == cli("--patches", mend, *command, FORMER_IDS[former]).out
    assert f"{former} is a part of {FORMER_IDS[former]} now" in answer.err


def test_list_groups_features_where_one_says_its_group(cli: Cli, mend: Path) -> None:
    assert "Mended" not in cli("list").out
    out = cli("--patches", mend, "list").out
    assert out.index("Mended, what a stock release does wrong:") < out.index("team-mend")
    assert out.index("team-mend") < out.index("Others:") < out.index("demo")
    (entry,) = (
        each
        for each in cli("--patches", mend, "list", "--json").json["features"]
        if each["feature"] == "team-mend"
    )
    assert (entry["group"], entry["fault"]["reports"]) == ("mended", ["https://example.com/7"])


def test_check_names_the_fault_until_it_is_mended(cli: Cli, mend: Path, site: Path) -> None:
    asked = ("--patches", mend, "check", "--feature", "team-mend", site)
    text = "fault: The engine ends with Trouble. (team-mend mends it: `overlay show team-mend --pat"
    assert text in cli(*asked).out
    (target,) = cli(*asked, "--json").json["targets"]
    assert target["faults"] == [
        {"feature": "team-mend", "symptom": "The engine ends with Trouble."}
    ]
    assert cli("--patches", mend, "apply", "--feature", "team-mend", site).exit == 0
    assert "fault:" not in cli(*asked).out


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('group = "mended"', 'group = "better"', "group: expected one of faster, mended"),
        ('symptom = "The', 'symptoms = "The', "unknown key 'symptoms' in [fault]"),
        ('affects = "every drafter"', 'affects = ""', "[fault] needs a text as affects"),
        ('["https://example.com/7"]', '["7"]', "reports: expected a list of URLs"),
        ("[fault]", "[[fault]]", "fault: expected a table, written [fault]"),
    ],
)
def test_a_malformed_fault_is_named(cli: Cli, mend: Path, old: str, new: str, problem: str) -> None:
    file = mend / "team-mend" / "feature.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    answer = cli("--patches", mend, "show", "team-mend")
    assert answer.exit == 2
    assert problem in answer.err


def test_every_shipped_feature_has_a_group_and_every_mend_says_what_it_mends() -> None:
    for feature in load([shipped_folder()]):
        assert feature.group is not None
        assert (feature.fault is not None) == (feature.group.value == "mended"), feature.id
        if feature.fault is not None:
            assert (shipped_folder().parent / feature.fault.page).is_file()
            assert feature.fault.reports or feature.upstream  # where nobody has reported it
