"""What goes on where a feature does not fit: it is named, and --without leaves it out."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from tests.authoring.commands.test_import import SCHEMA
from tests.support import fake_vllm
from tests.support.cli import CAPTURE, PROPOSER, RUNNER, Cli, digest, drift, edit
from tests.support.patches import hunk, patch_text, write_feature


def test_the_others_go_on_without_what_drifted(cli: Cli, site: Path) -> None:
    drift(site)
    checked = cli("check", site, "--patches", cli.team)
    assert checked.exit == 1
    step = f"`overlay apply --without demo --patches {cli.team} {site}`"
    assert f"go on: {step} applies the others" in checked.out
    answer = cli("check", site, "--patches", cli.team, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    assert answer["targets"][0]["left_out"] == ["demo"]
    assert cli("apply", site, "--patches", cli.team).exit == 1
    done = cli("apply", site, "--patches", cli.team, "--without", "demo", "--json")
    assert (done.exit, done.json["targets"][0]["applied"]) == (0, ["team-capture"])


def test_it_is_not_offered_where_nothing_is_left_or_nothing_would_go_on(
    cli: Cli, site: Path
) -> None:
    drift(site)
    assert "go on" not in cli("check", site).out  # demo alone
    edit(site, RUNNER, "captured = 0", "captured = 1")
    assert "go on" not in cli("check", site, "--patches", cli.team).out


def test_what_vllm_must_not_start_without_is_not_left_out(cli: Cli, site: Path) -> None:
    toml = cli.shipped / "demo/feature.toml"
    toml.write_text("required = true\n" + toml.read_text())
    drift(site)
    assert "go on" not in cli("check", site, "--patches", cli.team).out


def test_check_and_diff_leave_it_out_as_well(cli: Cli, site: Path) -> None:
    before = digest(site)
    drift(site)
    words = ("--patches", cli.team, "--without", "demo")
    assert cli("check", site, *words).exit == 0
    assert PROPOSER not in cli("diff", site, *words).out
    assert {path for path, value in digest(site).items() if before[path] != value} == {PROPOSER}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--without", "nothing"), "--without nothing: expected one of demo"),
        (("--feature", "demo", "--without", "demo"), "features other than those of --feature"),
    ],
)
def test_usage(cli: Cli, site: Path, words: tuple[str, ...], said: str) -> None:
    result = cli("apply", site, *words)
    assert (result.exit, said in result.err) == (2, True)


# One cause, one paragraph; what to do depends on the cause


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Three releases in which the same line drifted, each at another place."""
    made = []
    for number, version in enumerate(("0.26.0", "0.27.0", "0.28.0")):
        folder = tmp_path / version
        fake_vllm.tree(folder, version)
        text = (folder / RUNNER).read_text().replace("for size in (1, 2, 4):", "for size in ():")
        (folder / RUNNER).write_text("# a line\n" * number + text)
        made.append(folder)
    return made


def test_one_cause_is_one_paragraph_whatever_its_line_numbers(
    cli: Cli, folders: list[Path]
) -> None:
    result = cli("check", *folders, "--patches", cli.team, "--feature", "team-capture")
    assert result.exit == 1
    assert result.out.count("why: ") == 1
    assert "the nearest place is line" in result.out
    assert f"(lines of {folders[-1]})" in result.out
    port = f"`overlay port team-capture --releases 0.28.0 --patches {cli.team}`"
    assert f"{port} carries it there" in result.out
    assert 'merged = "0.28.0" in feature.toml retires it' in result.out
    assert result.out.count("drifted: ") == 1


def test_other_causes_stay_apart(cli: Cli, folders: list[Path]) -> None:
    edit(folders[0], RUNNER, "for size in ():", "for size in (8,):")
    result = cli("check", *folders, "--patches", cli.team, "--feature", "team-capture")
    assert result.out.count("why: ") == 2


def test_an_ambiguous_hunk_wants_more_context_and_a_renamed_scope_a_port(
    cli: Cli, site: Path, tmp_path: Path
) -> None:
    thin = patch_text(RUNNER, hunk([" ", "+# more"], "GPUModelRunner"))
    gone = CAPTURE.replace("capture_model", "capture_models")
    write_feature(tmp_path / "a", {"10-capture/0.20.0..0.33.0.patch": thin}, id="thin")
    write_feature(tmp_path / "b", {"10-capture/0.20.0..0.33.0.patch": gone}, id="gone")
    ambiguous = cli("check", site, "--patches", tmp_path / "a", "--feature", "thin")
    assert "more context lines, or a narrower scope" in ambiguous.out
    missing = cli("check", site, "--patches", tmp_path / "b", "--feature", "gone")
    assert (
        "where the release has renamed or moved the scope, let the range of gone/10-capture"
        in missing.out
    )
    assert (
        f"`overlay port gone --releases 0.26.0 --patches {tmp_path / 'b'}` carries it"
        in missing.out
    )
