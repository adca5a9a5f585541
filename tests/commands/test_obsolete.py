"""Where upstream has deleted what a feature is for, it retires with that reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from overlay._features.feature_toml import read_document, read_fields
from overlay._features.folder import load
from overlay.authoring.commands.log import LoggedRelease, table
from overlay.authoring.commands.matrix import _Carrying
from overlay.cli.run import run
from overlay.planning.scope_cache import Memo
from overlay.results import RUNNER_FILES, ModelRunner, Outcome, State
from tests.in_memory.boxes import FEATURE, PRISTINE, Box
from tests.support import fake_vllm
from tests.support.cli import CAPTURE, PROPOSE, PROPOSER, RUNNER, Cli
from tests.support.patches import write_feature
from tests.support.shipped_features import BOTH_RUNNERS, EAGER, LORA, RETIRED, SAMPLING
from tests.test_all_releases import of_patches, unpack

if TYPE_CHECKING:
    from overlay.authoring.locating import ReleaseTexts

#: What model runner V1 consists of in 0.33.0.
OF_V1 = tuple(
    f"vllm/v1/{path}.py"
    for path in (
        "worker/gpu_model_runner",
        "worker/gpu_ubatch_wrapper",
        "spec_decode/llm_base_proposer",
        "spec_decode/eagle",
        "cudagraph_dispatcher",
        "sample/rejection_sampler",
        "worker/gpu_input_batch",
    )
)
GONE = "vLLM has no model runner V1 any more"
#: What serves V2 without V1's files.
STAYING = (EAGER, *(name for name in BOTH_RUNNERS if name != SAMPLING))
#: What 0.33.0 has itself.
UPSTREAM = (LORA, *RETIRED)


@pytest.fixture
def v1(cli: Cli) -> str:
    """The id of a feature for V1, beside one that depends on no runner."""
    patches = {"10-capture/0.20.0..0.33.0.patch": CAPTURE}
    write_feature(cli.shipped, patches, id="for-v1", toml='model_runner = "v1"')
    return "for-v1"


def without(folder: Path, version: str, *paths: str) -> Path:
    """A fake vLLM without some files, in RECORD neither."""
    return fake_vllm.site_packages(folder / version, version, dict.fromkeys(paths))


def states(cli: Cli, *words: str | Path) -> dict[str, str]:
    (target,) = cli(*words, "--json").json["targets"]
    return {each["feature"]: each["state"] for each in target["features"]}


def test_a_feature_for_a_runner_that_is_gone_retires_and_the_others_go_on(
    cli: Cli, v1: str, tmp_path: Path
) -> None:
    site = without(tmp_path, "0.34.0", RUNNER)
    for command in ("check", "status"):
        answer = cli(command, site)
        assert answer.exit == 0
        assert GONE in answer.out
        assert states(cli, command, site) == {"demo": "pristine", v1: "inapplicable"}
    assert cli("apply", "--untested", site).exit == 0
    assert states(cli, "status", site) == {"demo": "applied", v1: "inapplicable"}
    assert "next:" not in cli("status", "-v", site).out
    assert cli("status", "--require", "all", site).exit == 0
    refused = cli("status", "--require", v1, site)
    assert refused.exit == 1
    assert "install a release that the feature is made for" in refused.out


def test_a_runner_that_record_lists_is_missing_and_not_gone(
    cli: Cli, v1: str, tmp_path: Path
) -> None:
    write_feature(
        cli.shipped,
        {"10-propose/0.20.0..0.33.0.patch": PROPOSE},
        id="beside-v1",
        toml='model_runner = "v1"',
    )
    site = fake_vllm.site_packages(tmp_path / "damaged", "0.33.0")
    (site / RUNNER).unlink()
    answer = cli("check", site)
    assert answer.exit == 1
    assert GONE not in answer.out
    assert states(cli, "check", site)[v1] == "missing"
    assert states(cli, "check", site)["beside-v1"] != "inapplicable"


def test_a_vllm_that_is_upgraded_to_a_release_without_it_needs_nobody(
    cli: Cli, v1: str, tmp_path: Path
) -> None:
    site = fake_vllm.site_packages(tmp_path / "site", version="0.33.0")
    assert cli("apply", site).exit == 0
    for path in (RUNNER, "vllm-0.33.0.dist-info/METADATA", "vllm-0.33.0.dist-info/RECORD"):
        (site / path).unlink()
    (site / "vllm-0.33.0.dist-info").rename(tmp_path / "gone")
    fake_vllm.site_packages(site, "0.34.0", {RUNNER: None})
    assert states(cli, "status", site)[v1] == "inapplicable"
    assert cli("check", site).exit == 0


def test_what_a_variant_knows_to_be_there_is_missing(cli: Cli, v1: str, tmp_path: Path) -> None:
    """An installation from which the file was lost is no release that deleted it."""
    site = fake_vllm.site_packages(tmp_path / "site", version="0.33.0")
    (site / RUNNER).unlink()
    assert states(cli, "check", site)[v1] == "missing"
    assert cli("check", site).exit == 1
    bare = fake_vllm.tree(tmp_path / "bare", "0.33.0", {RUNNER: None})
    assert states(cli, "check", bare)[v1] == "missing"
    assert states(cli, "check", without(tmp_path, "0.33.0", RUNNER))[v1] == "inapplicable"


def test_another_file_that_is_gone_is_missing(cli: Cli, v1: str, tmp_path: Path) -> None:
    site = without(tmp_path, "0.34.0", PROPOSER)
    assert states(cli, "check", site) == {"demo": "missing", v1: "pristine"}
    assert cli("check", site).exit == 1


def test_the_log_of_a_feature_tells_the_reason() -> None:
    gone = LoggedRelease("0.34.0", State.INAPPLICABLE, None, (), (), (), (), GONE, "inapplicable")
    below = gone._replace(release="0.19.0", why="0.19.0 is below its range")
    told = [str(line) for line in table((below, gone))]
    assert any(GONE in line for line in told)
    assert not any("below its range" in line for line in told)


def test_any_feature_can_say_what_it_is_for(cli: Cli, tmp_path: Path) -> None:
    toml = 'obsolete_without = ["vllm/v1/made_for.py"]'
    write_feature(cli.team, {"10-propose/0.20.0..0.33.0.patch": PROPOSE}, id="typed", toml=toml)
    site = without(tmp_path, "0.34.0")
    words = ("check", "--patches", cli.team, "--feature", "typed")
    answer = cli(*words, site)
    assert answer.exit == 0
    assert "vLLM has no vllm/v1/made_for.py any more, which the feature is for" in answer.out
    has_it = fake_vllm.site_packages(tmp_path / "has", "0.34.0", {"vllm/v1/made_for.py": b""})
    assert states(cli, *words, has_it) == {"typed": "pristine"}
    listed = cli("list", "--patches", cli.team).out
    assert "or where a release has no vllm/v1/made_for.py any more" in listed


def test_how_a_port_would_land_is_not_asked_where_there_is_nothing_to_do(
    v1: str, cli: Cli, tmp_path: Path
) -> None:
    """The matrix has no letter for it: it is not made for such a release."""
    trees = {
        "0.33.0": fake_vllm.files("0.33.0"),
        "0.34.0": fake_vllm.files("0.34.0", {RUNNER: None}),
    }

    class Texts:
        names = tuple(trees)

        def read(self, release: str, path: str) -> bytes | None:
            return trees[release].get(path)

        def record(self, release: str) -> dict[str, str]:
            return dict.fromkeys(trees[release], "")

    (feature,) = [each for each in load([cli.shipped]) if each.id == v1]
    carrying = _Carrying(cast("ReleaseTexts", Texts()), Memo())
    assert carrying.outcomes((feature, ["0.34.0"])) == {"0.34.0": None}
    trees["0.34.0"][RUNNER] = trees["0.33.0"][RUNNER]
    assert carrying.outcomes((feature, ["0.34.0"])) == {"0.34.0": Outcome.EXACT}


@pytest.mark.parametrize(
    ("release", "outcome"),
    [
        ({}, Outcome.EXACT),
        ({"vllm/v1/mine.py": b"a = 1\nb = 2\n"}, Outcome.UPSTREAM),
        ({"vllm/v1/mine.py": b"other = 1\n"}, Outcome.CONFLICT),
    ],
)
def test_how_a_feature_of_modules_would_land_is_told(
    cli: Cli, release: dict[str, bytes], outcome: Outcome
) -> None:
    write_feature(cli.team, {"files/vllm/v1/mine.py": "a = 1\n"}, id="modules")
    trees = {"0.19.0": fake_vllm.files("0.19.0", release)}

    class Texts:
        names = tuple(trees)

        def read(self, release: str, path: str) -> bytes | None:
            return trees[release].get(path)

        def record(self, release: str) -> None:
            return None

    (feature,) = (each for each in load([cli.team]) if each.id == "modules")
    carrying = _Carrying(cast("ReleaseTexts", Texts()), Memo())
    assert carrying.outcomes((feature, ["0.19.0"])) == {"0.19.0": outcome}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('"vllm/a.py"', "expected a list of paths"),
        ("[1]", "expected a list of paths"),
        ('["/etc/passwd"]', "obsolete_without: "),
        ('["vllm/../a.py"]', "obsolete_without: "),
        ('["other/a.py"]', "obsolete_without: "),
    ],
)
def test_a_place_that_is_none_is_an_error(cli: Cli, value: str, says: str) -> None:
    write_feature(cli.team, {"files/vllm/x.py": ""}, id="bad", toml=f"obsolete_without = {value}")
    answer = cli("list", "--patches", cli.team)
    assert answer.exit == 1
    assert says in answer.out
    assert "bad/feature.toml:" in answer.out


@pytest.mark.parametrize("runner", ModelRunner)
def test_the_file_of_the_runner_is_implied(tmp_path: Path, runner: ModelRunner) -> None:
    for package, expected in (("vllm", (RUNNER_FILES[runner],)), ("vllm_ascend", ())):
        toml = f'model_runner = "{runner.value}"\npackage = "{package}"'
        folder = write_feature(tmp_path / package, {}, toml=toml)
        document = read_document(folder / "feature.toml", [])
        assert document is not None
        assert read_fields(document).obsolete_without == expected


def test_the_plugin_serves_and_says_it_once(tmp_path: Path) -> None:
    """A later process, which reads what an earlier one decided, says the same."""
    box = Box(tmp_path, {RUNNER: None})
    text = FEATURE.replace("0.25.0..0.26.0", "0.24.0..0.25.0") + 'model_runner = "v1"\n'
    demo = box.patches / "demo"
    (demo / "feature.toml").write_text(text)
    (demo / "10-first/0.25.0..0.26.0.patch").rename(demo / "10-first/0.24.0..0.25.0.patch")
    for _ in range(2):
        said = box.run(PRISTINE)
        (line,) = [each for each in said.splitlines() if GONE in each]
        assert line.startswith("INFO:")
        assert "nothing to do for demo: " in line
        assert "WARNING" not in said
    assert box.attempt(PRISTINE, OVERLAY_REQUIRED="all").returncode == 0


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of 0.33.0 of which patches speak, called 0.34.0."""
    folder = unpack("0.33.0", tmp_path_factory.mktemp("newest"), of_patches())
    version = folder / "vllm/_version.py"
    text = version.read_text()
    assert "0.33.0" in text
    version.write_text(text.replace("0.33.0", "0.34.0").replace("(0, 33, 0)", "(0, 34, 0)"))
    return folder


def shipped_states(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    status = run(["check", str(folder), "--json"])
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    return status, {each["feature"]: each["state"] for each in target["features"]}


@pytest.mark.network
@pytest.mark.parametrize("number", range(len(OF_V1)))
def test_some_files_of_v1_that_are_gone_are_missing(
    newest: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each alone: only the runner's own file says that the runner is gone."""
    file = newest / OF_V1[number]
    if not file.exists():
        return  # no patch speaks of it
    content = file.read_bytes()
    file.unlink()
    try:
        status, states = shipped_states(newest, capsys)
    finally:
        file.write_bytes(content)
    assert {states.pop(name) for name in STAYING} == {"pristine"}
    if OF_V1[number] == RUNNER:
        assert (status, {*states.values()}) == (0, {"inapplicable", "upstreamed"})
    else:
        assert status == 1
        assert "missing" in states.values()
        assert "inapplicable" not in states.values()


@pytest.mark.network
def test_every_shipped_feature_retires_with_model_runner_v1(
    newest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {path: (newest / path).read_bytes() for path in OF_V1 if (newest / path).exists()}
    for path in contents:
        (newest / path).unlink()
    try:
        status, states = shipped_states(newest, capsys)
        for command in ("status", "apply", "check"):
            words = ["--untested", "--dry-run"] if command == "apply" else []
            assert run([command, str(newest), *words]) == 0
            assert capsys.readouterr().out.count(GONE) == len(states) - len(UPSTREAM) - len(STAYING)
    finally:
        for path, content in contents.items():
            (newest / path).write_bytes(content)
    assert status == 0
    assert {states.pop(name) for name in UPSTREAM} == {"upstreamed"}
    assert {states.pop(name) for name in STAYING} == {"pristine"}
    assert {*states.values()} == {"inapplicable"}
