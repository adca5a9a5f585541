"""``overlay new --from-edits`` and ``revert --keep-as``: edits of an installation as a feature."""

from __future__ import annotations

import json
from difflib import unified_diff
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from overlay._features.folder import load
from tests.authoring.test_composing import changes
from tests.support import fake_vllm, releases
from tests.support.cli import ADDED, PROPOSER, RUNNER, Cli, digest, edit
from tests.support.releases import Index

SCHEMA = json.loads(
    resources.files("overlay.report").joinpath("schema-2.json").read_text(encoding="utf-8")
)
EXTRA = "vllm/v1/extra.py"


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    return releases.install(monkeypatch)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return tmp_path / "ours"


def test_edits_become_a_feature_and_stay_in_place(cli: Cli, site: Path, ours: Path) -> None:
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    (site / EXTRA).write_text("EXTRA = 1\n")
    before = digest(site)
    result = cli("new", "stop-fix", site, "--from-edits", "--patches", ours)
    assert result.exit == 0, result.err
    assert "1 hunk in GPUModelRunner.capture_model" in result.out
    assert f"{EXTRA}" in result.out
    assert "added module" in result.out
    assert "revert --keep-as stop-fix" in result.last
    assert digest(site) == before
    (feature,) = load([ours])
    assert feature.releases.first.public == "0.24.0"
    assert [each.path for each in feature.added] == [EXTRA]
    clean = fake_vllm.site_packages(site.parent / "clean")
    assert cli("apply", clean, "--feature", "stop-fix", "--patches", ours).exit == 0
    for path in (RUNNER, EXTRA):
        assert (clean / path).read_bytes() == (site / path).read_bytes()


def test_the_json_is_as_the_schema_says(cli: Cli, site: Path, ours: Path) -> None:
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    result = cli("new", "stop-fix", site, "--from-edits", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.json["new"]["releases"] == "0.24.0..0.26.0"
    assert result.json["new"]["outcomes"]["0.27.0"] == "conflict"
    assert result.json["new"]["files"] == [
        {
            "path": RUNNER,
            "fate": "edited",
            "hunks": [{"scope": "GPUModelRunner.capture_model", "number": 1}],
            "stacks_on": [],
            "problem": None,
        }
    ]


def test_edits_of_a_patched_file_stack_on_the_patches(cli: Cli, site: Path, ours: Path) -> None:
    assert cli("apply", site).exit == 0
    edit(
        site, PROPOSER, "drafts = [self._first(tokens)]  # patched", "drafts = []  # patched, mine"
    )
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    result = cli("new", "stop-fix", site, "--from-edits", "--patches", ours)
    assert result.exit == 0, result.err
    assert "on top of demo" in result.out
    clean = fake_vllm.site_packages(site.parent / "clean")
    both = cli("apply", clean, "--patches", ours)
    assert both.exit == 0, both.out + both.err
    assert (clean / PROPOSER).read_bytes() == (site / PROPOSER).read_bytes()


def test_an_edited_patched_file_is_no_dead_end(cli: Cli, site: Path, ours: Path) -> None:
    pristine = digest(site)
    assert cli("apply", site).exit == 0
    edit(site, PROPOSER, "# patched", "# patched, and mine")
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    (site / EXTRA).write_text("EXTRA = 1\n")
    edited = digest(site)
    refused = cli("revert", site)
    assert refused.exit == 1
    assert "--keep-as" in refused.out
    assert digest(site) == edited
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.exit == 0
    assert f"kept in {ours / 'mine'}" in result.json["verdict"]
    assert digest(site) == pristine
    assert cli("apply", site, "--patches", ours).exit == 0
    now = digest(site)
    assert [now[path] for path in (PROPOSER, RUNNER, EXTRA)] == [
        edited[path] for path in (PROPOSER, RUNNER, EXTRA)
    ]


def test_an_edit_from_before_the_apply_is_found_too(cli: Cli, site: Path, ours: Path) -> None:
    pristine = digest(site)
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    assert cli("apply", site).exit == 0
    applied = digest(site)
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 0, result.out + result.err
    assert "on top of demo" in result.out
    assert digest(site) == pristine
    assert cli("apply", site, "--patches", ours).exit == 0
    assert digest(site)[PROPOSER] == applied[PROPOSER]


def test_a_feature_that_holds_the_edits_already_is_taken(cli: Cli, site: Path, ours: Path) -> None:
    pristine = digest(site)
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    assert cli("new", "mine", site, "--from-edits", "--patches", ours).exit == 0
    made = digest(ours)
    edit(site, RUNNER, "(1, 2)", "(1, 3)")
    other = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert other.exit == 2
    assert "does not hold these edits" in other.err
    edit(site, RUNNER, "(1, 3)", "(1, 2)")
    assert cli("revert", site, "--keep-as", "mine", "--patches", ours).exit == 0
    assert digest(site) == pristine
    assert digest(ours) == made


def test_where_nothing_is_edited_nothing_is_made(cli: Cli, site: Path, ours: Path) -> None:
    result = cli("new", "mine", site, "--from-edits", "--patches", ours, "--json")
    assert (result.exit, result.json["code"]) == (1, "nothing-edited")
    assert not ours.exists()
    assert cli("apply", site).exit == 0
    again = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert again.exit == 1
    ours.mkdir()
    reverted = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert reverted.exit == 0
    assert "nothing was edited" in reverted.out
    assert not list(ours.iterdir())


def test_a_checkout_is_compared_with_its_release(cli: Cli, tmp_path: Path, ours: Path) -> None:
    tree = fake_vllm.tree(tmp_path / "checkout", "0.26.0")
    edit(tree, RUNNER, "(1, 2, 4)", "(1, 2)")
    with (tree / "vllm/_version.py").open("a") as file:
        file.write("BUILD = 1\n")  # which a build writes
    result = cli("new", "mine", tree, "--from-edits", "--patches", ours)
    assert result.exit == 0, result.err
    assert cli("revert", tree, "--keep-as", "mine", "--patches", ours).exit == 0
    assert (tree / RUNNER).read_bytes() == fake_vllm.files()[RUNNER]


def test_the_pristine_text_is_never_guessed(cli: Cli, site: Path, ours: Path, index: Index) -> None:
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    index.gone.add("0.26.0")
    gone = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert gone.exit == 2
    assert "not on the index" in gone.err
    index.gone.clear()
    other = fake_vllm.site_packages(
        site.parent / "other", extra={RUNNER: b"def built_here():\n    return 1\n"}
    )
    edit(other, RUNNER, "return 1", "return 2")
    another = cli("new", "mine", other, "--from-edits", "--patches", ours)
    assert another.exit == 2
    assert "another build" in another.err
    assert not ours.exists()


def test_the_patches_below_an_edit_have_to_be_at_hand(cli: Cli, site: Path, ours: Path) -> None:
    assert cli("apply", site).exit == 0
    edit(site, PROPOSER, "# patched", "# patched, and mine")
    patch = cli.shipped / "demo/10-propose/0.20.0..0.33.0.patch"
    patch.write_text(patch.read_text().replace("# patched", "# other"))
    result = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert result.exit == 2
    assert "demo" in result.err
    assert "make another text" in result.err
    assert not ours.exists()


def test_what_a_feature_cannot_carry_is_named(cli: Cli, site: Path, ours: Path) -> None:
    (site / RUNNER).write_text("def f(:\n")
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    before = digest(site)
    result = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert result.exit == 1
    assert "is not Python" in result.out
    kept = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert kept.exit == 1
    assert "Nothing was reverted" in kept.last
    assert digest(site) == before
    assert not ours.exists()


@pytest.mark.parametrize("lines", [range(3, 4), range(1000)], ids=["one", "all"])
def test_a_line_that_ends_unlike_those_around_it_is_named(
    cli: Cli, site: Path, ours: Path, lines: range
) -> None:
    """As an editor that converts, or a tool that appends to a file with other line ends."""
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    rows = (site / PROPOSER).read_bytes().split(b"\n")
    (site / PROPOSER).write_bytes(
        b"\n".join(row + b"\r" * (at in lines and row != b"") for at, row in enumerate(rows))
    )
    result = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert result.exit == 1
    assert "it changes line ends" in result.out
    assert "'\\r\\n', and was expected to end with '\\n'" in result.out


def test_what_tools_leave_beside_the_modules_keeps_no_edit_from_its_feature(
    cli: Cli, site: Path, ours: Path
) -> None:
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    (site / f"{PROPOSER}.orig").write_text("")
    (site / f"{PROPOSER}~").write_text("")
    result = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert (result.exit, (ours / "mine/feature.toml").exists()) == (1, True)
    assert f"{PROPOSER}.orig" in result.last


def test_a_mode_that_no_feature_carries_is_named(cli: Cli, site: Path, ours: Path) -> None:
    (site / "vllm/tool.py").write_text("print(1)\n")
    words = ("new", "mine", site, "--from-edits", "--update", "--patches", ours)
    assert cli(*words).exit == 0
    (site / "vllm/tool.py").chmod(0o755)
    result = cli(*words)
    assert (result.exit, (ours / "mine/files/vllm/tool.py").exists()) == (1, True)
    assert "vllm/tool.py (its mode: executable)" in result.last


def test_without_a_record_it_is_said_what_was_not_compared(
    cli: Cli, site: Path, ours: Path
) -> None:
    next(site.glob("*.dist-info/RECORD")).unlink()
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    result = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert result.exit == 0
    assert "that are not Python were not compared" in result.out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["new", "mine", "SITE"], "--from-edits"),
        (["new", "Mine", "SITE", "--from-edits"], "lower-case-with-hyphens"),
        (["new", "team-capture", "SITE", "--from-edits", "--patches", "TEAM"], "--update"),
        (["new", "mine", "0.26.0", "--from-edits"], "expected an installed vLLM"),
        (["revert", "SITE", "--keep-as", "mine", "--feature", "demo"], "omit --feature"),
        (["revert", "SITE", "--keep-as", "Mine"], "lower-case-with-hyphens"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    cli: Cli, site: Path, ours: Path, arguments: list[str], word: str
) -> None:
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    before, team = digest(site), digest(cli.team)
    places = {"SITE": site, "TEAM": cli.team}
    given_ = [str(places.get(argument, argument)) for argument in arguments]
    if "--patches" not in given_:
        ours.mkdir()
        given_ += ["--patches", str(ours)]
    result = cli(*given_)
    assert result.exit == 2
    assert word in result.err
    assert (digest(site), digest(cli.team)) == (before, team)
    assert not ours.exists() or not list(ours.iterdir())


def test_a_folder_to_write_to_must_be_named(cli: Cli, site: Path) -> None:
    for arguments in (["new", "mine", site, "--from-edits"], ["revert", site, "--keep-as", "mine"]):
        result = cli(*arguments)
        assert result.exit == 2
        assert "expected a folder of patches to write to" in result.err


def test_the_edit_of_an_added_module_stacks_on_it(cli: Cli, site: Path, ours: Path) -> None:
    assert cli("apply", site).exit == 0
    (site / ADDED).write_text("VALUE = 1\nMORE = 2\n")
    result = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert result.exit == 0, result.err
    assert "on top of demo" in result.out
    assert cli("revert", site, "--keep-as", "mine", "--patches", ours).exit == 0
    assert cli("apply", site, "--patches", ours).exit == 0
    assert (site / ADDED).read_text() == "VALUE = 1\nMORE = 2\n"


def test_an_order_that_cannot_give_the_edit_is_said(cli: Cli, site: Path) -> None:
    assert cli("apply", site, "--patches", cli.team).exit == 0
    edit(site, RUNNER, "(1, 2, 4, 8)", "(1, 2, 4, 8, 16)")
    result = cli("new", "a-fix", site, "--from-edits", "--patches", cli.team)
    assert result.exit == 2
    assert "sorts behind" in result.err
    assert cli("new", "z-fix", site, "--from-edits", "--patches", cli.team).exit == 0


@settings(
    max_examples=8,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
    ],
)
@given(texts=changes(), stacked=st.booleans())
def test_applying_a_feature_of_random_edits_gives_them_byte_for_byte(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory, texts: tuple[bytes, bytes], stacked: bool
) -> None:
    """Law 1."""
    before, after = texts
    place = tmp_path_factory.mktemp("law")
    path = "vllm/v1/worker/other.py"

    def laid(name: str) -> Path:
        return fake_vllm.site_packages(place / name, extra={path: before})

    site, ours, clean = laid("site"), place / "ours", laid("clean")
    if stacked:
        cli("apply", site)
        edit(site, PROPOSER, "# patched", "# patched, and mine")
    (site / path).write_bytes(after)
    with pytest.MonkeyPatch.context() as patch:
        real = releases.files
        patch.setattr(releases, "files", lambda release: {**real(release), path: before})
        made = cli("new", "mine", site, "--from-edits", "--patches", ours)
        assume(made.exit != 1)  # no hunk can say it
        assert made.exit == 0, made.err
        assert cli("apply", clean, "--patches", ours).exit == 0
        assert (clean / path).read_bytes() == after
        cli("revert", site, "--keep-as", "mine", "--patches", ours)
        assert (site / path).read_bytes() == before


def test_a_file_that_is_missing_is_lost_unless_somebody_says_that_it_was_removed(
    cli: Cli, site: Path, ours: Path
) -> None:
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    (site / RUNNER).unlink()
    words = ("new", "stop-fix", site, "--from-edits", "--patches", ours)
    lost = cli(*words)
    assert lost.exit == 1
    assert f"{RUNNER} (missing)" in lost.last
    assert "--removals" in lost.last
    assert [path.name for path in (ours / "stop-fix").glob("[0-9]*")] == ["10-proposer"]
    removed = cli(*words, "--update", "--removals", "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(removed.json)
    assert removed.exit == 0, removed.out
    assert removed.json["new"]["beside"] == []
    # A feature that removes the file says so as well.
    assert cli(*words, "--update").exit == 0
    reverted = cli("revert", site, "--keep-as", "stop-fix", "--patches", ours)
    assert reverted.exit == 0, reverted.out
    assert digest(site) == digest(fake_vllm.site_packages(site.parent / "clean"))


def test_what_an_installation_lost_comes_back_and_no_feature_removes_it(
    cli: Cli, site: Path, ours: Path
) -> None:
    pristine = digest(site)
    edit(site, PROPOSER, "self.model = None", "self.model = 1")
    (site / RUNNER).unlink()
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 0
    assert f"{RUNNER} was missing, perhaps lost, so no feature removes it" in result.out
    assert digest(site) == pristine
    (site / RUNNER).unlink()
    assert cli("revert", site, "--keep-as", "more", "--patches", ours).exit == 0
    assert digest(site) == pristine
    assert not (ours / "more").exists()
    assert cli("apply", site, "--feature", "mine", "--patches", ours).exit == 0
    assert (site / RUNNER).exists()


def test_a_lost_file_that_the_overlay_patched_comes_back(cli: Cli, site: Path, ours: Path) -> None:
    pristine = digest(site)
    assert cli("apply", site).exit == 0
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2)")
    (site / PROPOSER).unlink()
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 0, result.out
    assert digest(site) == pristine


def test_edits_of_a_development_build_are_imported_on_its_own_files(
    cli: Cli, tmp_path: Path, ours: Path
) -> None:
    """What the refusal names is done, and the feature makes the edits on that build."""
    build, edited = (
        fake_vllm.site_packages(tmp_path / name, version="0.26.1.dev5+g0123abc")
        for name in ("build", "edited")
    )
    for site in (build, edited):
        edit(site, RUNNER, "(1, 2, 4)", "(1, 2, 4, 64)")
    edit(edited, RUNNER, "(1, 2, 4, 64)", "(1, 2, 64)")
    ours.mkdir()
    refused = cli("new", "mine", edited, "--from-edits", "--patches", ours)
    assert refused.exit == 2
    assert f"`overlay import FILE --id ID --base BUILD --patches {ours}`" in refused.err
    old, new = ((site / RUNNER).read_text().splitlines(True) for site in (build, edited))
    lines = unified_diff(old, new, f"build/{RUNNER}", f"edited/{RUNNER}")
    (tmp_path / "made.diff").write_text("".join(lines))
    words = ("import", tmp_path / "made.diff", "--id", "mine", "--base", build, "--patches", ours)
    made = cli(*words)
    assert made.exit == 0, made.out + made.err
    applied = cli("apply", build, "--feature", "mine", "--untested", "--patches", ours)
    assert applied.exit == 0, applied.out + applied.err
    assert (build / RUNNER).read_bytes() == (edited / RUNNER).read_bytes()
