"""``check --output-format``: the same check as annotations of GitHub, JUnit, Markdown and JSON."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.commands.since import Annotation
from overlay.results import Reason
from tests.support.cli import RUNNER, Cli, drift, edit

_COMMAND = re.compile(r"::error ((?:[a-z]+=[^,:\r\n]*,?)*)::([^\r\n]*)")

#: What a test suite of Ant's and Jenkins's JUnit has to have, in this order.
_ATTRIBUTES = {"name", "tests", "failures", "errors", "time", "timestamp", "hostname"}


def commands(text: str) -> list[tuple[dict[str, str], str]]:
    """The annotations as GitHub's runner reads them: properties and message."""
    read = []
    for line in text.splitlines():
        match = _COMMAND.fullmatch(line)
        assert match is not None, line
        pairs = (each.split("=", 1) for each in match[1].split(",") if each)
        read.append(({name: unquote(value) for name, value in pairs}, unquote(match[2])))
    return read


def test_github_shows_each_hunk_at_its_line_of_the_patch(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift(site)
    edit(site, RUNNER, "captured = 0", "captured = 1")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.chdir(cli.team.parent)
    result = cli("--patches", cli.team, "check", site, "--output-format", "github")
    assert result.exit == cli("--patches", cli.team, "check", site).exit == 1
    told = commands(result.out)
    assert len(told) == 2
    for properties, message in told:
        lines = Path(properties["file"]).read_text().splitlines()
        scope = properties["title"].rpartition(" in ")[2]
        assert lines[int(properties["line"]) - 1].startswith("@@ ")
        assert lines[int(properties["line"]) - 1].endswith(f"@@ {scope}")
        assert str(site) in message
    assert {Path(each["file"]).parts[0] for each, _ in told} == {"shipped", "team"}
    assert result.err.splitlines() == [cli("--patches", cli.team, "check", site).last]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(cli.team))
    again = cli("--patches", cli.team, "check", site, "--output-format", "github")
    assert any(each.get("file", "").startswith("team-capture/") for each, _ in commands(again.out))


def test_github_tells_a_hunk_once_for_all_targets(cli: Cli, site: Path, tmp_path: Path) -> None:
    drift(site)
    copies = [tmp_path / name for name in ("a", "b")]
    for copy in copies:
        copy.symlink_to(site)
    ((_, message),) = commands(cli("check", *copies, "--output-format", "github").out)
    assert all(str(copy) in message for copy in copies)


def test_github_tells_of_targets_and_of_malformed_features(cli: Cli, site: Path) -> None:
    absent = cli("check", site, site / "nowhere", "--output-format", "github")
    assert absent.exit == 2
    assert [properties for properties, _ in commands(absent.out)] == [{"title": "overlay check"}]
    (cli.team / "team-capture" / "feature.toml").write_text("id = 1")
    result = cli("--patches", cli.team, "check", site, "--output-format", "github")
    ((properties, message),) = commands(result.out)
    assert result.exit == 1
    assert "malformed" in properties["title"]
    assert "feature.toml" in message


@given(st.text(), st.text(), st.text(min_size=1))
def test_no_text_is_read_as_another_command(title: str, reason: str, target: str) -> None:
    line = Annotation(Path("a,b:c%.patch"), 3, title, Reason(reason)).command([target])
    ((properties, _),) = commands(line)
    assert set(properties) == {"file", "line", "title"}


def test_what_needs_nobody_has_no_annotation(cli: Cli, site: Path) -> None:
    assert cli("check", site, "--output-format", "github").out == ""


def test_junit_has_what_its_schemas_ask_for(cli: Cli, site: Path) -> None:
    for attention in (0, 1):
        result = cli("--patches", cli.team, "check", site, "--output-format", "junit")
        suite = ElementTree.fromstring(result.out)
        cases = suite.findall("testcase")
        assert [each.tag for each in suite] == [
            "properties",
            *["testcase" for _ in cases],
            "system-out",
            "system-err",
        ]
        assert set(suite.attrib) >= _ATTRIBUTES
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        assert int(suite.attrib["tests"]) == len(cases) == 2
        failures = suite.findall("testcase/failure")
        assert len(failures) == int(suite.attrib["failures"]) == attention
        assert all(set(each.attrib) == {"type", "message"} for each in failures)
        assert all(set(each.attrib) == {"classname", "name", "time"} for each in cases)
        assert result.exit == attention
        if not attention:
            drift(site)


def test_markdown_says_what_needs_you_and_what_does_not(cli: Cli, site: Path) -> None:
    drift(site)
    result = cli("--patches", cli.team, "check", site, "--output-format", "markdown")
    needy, _, rest = result.out.partition("### Nothing to do")
    assert "| demo | drifted |" in needy
    assert "| team-capture | pristine |" in rest
    assert "not asked about" not in result.out


def test_json_is_what_json_is(cli: Cli, site: Path) -> None:
    assert cli("check", site, "--output-format", "json").out == cli("check", site, "--json").out
    text = cli("check", site, "--output-format", "text")
    assert text.out == cli("check", site).out
    for form in ("github", "junit", "markdown"):
        assert cli("check", site, "--json", "--output-format", form).exit == 2


def test_github_since_tells_what_got_worse(cli: Cli, site: Path, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    drift(site)
    before.write_text(cli("check", site, "--json").out)
    same = cli("check", site, "--since", before, "--output-format", "github")
    assert (same.exit, same.out) == (0, "")
    edit(site, RUNNER, "captured = 0", "captured = 1")
    (before_team, after) = (
        cli("--patches", cli.team, "check", site, "--since", before, "--output-format", form)
        for form in ("json", "github")
    )
    assert before_team.json["since"]["changes"][0]["feature"] == "team-capture"
    assert [each["title"].split(":")[0] for each, _ in commands(after.out)] == ["team-capture"]
