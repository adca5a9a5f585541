"""Commands that write patches, on features for another package than vLLM."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from overlay._features.folder import load
from overlay._features.model import Feature
from overlay.authoring.commands import matrix
from overlay.package import package_named
from overlay.targets import Target, resolution
from tests.authoring.commands.test_import import SCHEMA
from tests.commands.test_packages import ASCEND, ASCEND_PROPOSER, RELEASE, feature_for, install
from tests.support import fake_vllm
from tests.support.cli import Cli, edit
from tests.support.releases import Release

PACKAGE = package_named(ASCEND)
OLD, NEW = PACKAGE.releases[0], PACKAGE.releases[-1]
#: The releases in which the proposer begins otherwise.
CHANGED = PACKAGE.releases[-3:]
RUNNER = f"{ASCEND}/v1/worker/gpu_model_runner.py"

DIFF = f"""\
--- a/{ASCEND_PROPOSER}
+++ b/{ASCEND_PROPOSER}
@@ -11,2 +11,3 @@
     def load_model(self, target) -> None:
         self.model = target.draft()
+        self.ready_for_drafts = True
"""


def text_of(release: str) -> dict[str, bytes]:
    """The files of a release of vllm-ascend."""
    files = fake_vllm.files(release, package=ASCEND)
    if release in CHANGED:
        first = b"drafts = [self._first(tokens)]"
        files[ASCEND_PROPOSER] = files[ASCEND_PROPOSER].replace(first, b"drafts = list(tokens)")
    return files


@pytest.fixture(autouse=True)
def releases(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small releases of vllm-ascend that need no network; nothing else is on the index."""
    real = resolution.resolve

    def resolve(name: str | None, **options: object) -> object:
        named = None if name is None else resolution.release_named(name)
        if named is None:
            return real(name, **options)  # type: ignore[arg-type]
        version, package = named
        assert package == PACKAGE, f"{name} is a release of {package.title}"
        return Release(text_of(str(version)), f"{version}")

    monkeypatch.setattr(resolution, "resolve", resolve)
    shutil.rmtree(cli.shipped / "demo")
    shutil.rmtree(cli.team)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def only(folder: Path) -> Feature:
    """The one feature of a folder of patches, as every command reads it."""
    (feature,) = load([folder])
    return feature


def spans(folder: Path) -> list[str]:
    """The ranges of its variants."""
    return [str(v.releases) for topic in only(folder).topics for v in topic.variants]


def bases(folder: Path) -> list[str | None]:
    """What its variants were made on."""
    return [v.patch.headers.get("Base") for topic in only(folder).topics for v in topic.variants]


@pytest.fixture
def imported(cli: Cli, tmp_path: Path) -> Path:
    """A folder of patches with a change of vllm-ascend, imported."""
    (tmp_path / "fix.diff").write_text(DIFF)
    result = cli("import", tmp_path / "fix.diff", "--id", "ready", "--patches", cli.team)
    assert result.exit == 0, result.out + result.err
    return cli.team


def test_import_knows_the_package_by_the_paths_of_the_change(imported: Path) -> None:
    feature = only(imported)
    assert feature.package == PACKAGE
    assert spans(imported) == [f"{OLD}..{NEW}"]
    assert set(bases(imported)) <= set(PACKAGE.releases)


def test_import_serves_the_releases_that_are_named_with_the_package(
    cli: Cli, imported: Path, tmp_path: Path
) -> None:
    span = "vllm-ascend==0.23.0rc1..0.23.0.post1"
    result = cli(
        "import", tmp_path / "fix.diff", "--id", "ready", "--patches", imported, "--update",
        "--releases", span,
    )  # fmt: skip
    assert result.exit == 0, result.out + result.err
    assert spans(imported) == ["0.23.0rc1..0.23.0.post1"]


def test_a_change_of_vllm_is_none_of_vllm_ascend(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "fix.diff").write_text(DIFF.replace(ASCEND, "vllm"))
    refused = cli(
        "import", tmp_path / "fix.diff", "--id", "ready", "--patches", cli.team,
        "--releases", "vllm-ascend==all",
    )  # fmt: skip
    assert refused.exit == 2
    assert "expected a change of vllm-ascend, whose Python lies in vllm_ascend/" in refused.err
    assert not (cli.team / "ready").exists()


def test_edit_lays_out_a_release_of_the_package(cli: Cli, imported: Path) -> None:
    result = cli("edit", "ready", "--release", f"vllm-ascend=={RELEASE}", "--patches", imported)
    assert result.exit == 0, result.out + result.err
    session = Path(f"ready@{RELEASE}")
    edit(session, ASCEND_PROPOSER, "ready_for_drafts = True", "ready_for_drafts = 1")
    done = cli("edit", "--commit", session)
    assert done.exit == 0, done.out + done.err
    assert spans(imported) == [f"{OLD}..{NEW}"]
    assert bases(imported) == [RELEASE]
    assert not session.exists()


def test_edit_refuses_a_release_of_another_package(cli: Cli, imported: Path) -> None:
    refused = cli("edit", "ready", "--release", "vllm==0.26.0", "--patches", imported)
    assert refused.exit == 2
    assert "is not a release of vllm-ascend" in refused.err


def test_a_session_whose_package_was_made_up_is_damaged(cli: Cli, imported: Path) -> None:
    assert cli("edit", "ready", "--release", RELEASE, "--patches", imported).exit == 0
    document = Path(f"ready@{RELEASE}/session.toml")
    document.write_text(document.read_text().replace(f'"{ASCEND}"', '"../etc"', 1))
    refused = cli("edit", "--commit", document.parent)
    assert refused.exit == 2
    assert "found a damaged one" in refused.err
    assert document.exists()


def test_new_lays_out_files_of_the_package_that_they_lie_in(cli: Cli) -> None:
    result = cli("new", "sizes", "--file", RUNNER, "--patches", cli.team)
    assert result.exit == 0, result.out + result.err
    session = Path(f"sizes@{NEW}")
    edit(session, RUNNER, "(1, 2, 4)", "(1, 2, 4, 8)")
    done = cli("edit", "--commit", session)
    assert done.exit == 0, done.out + done.err
    assert only(cli.team).package == PACKAGE
    assert spans(cli.team) == [f"{OLD}..{NEW}"]


def test_new_takes_the_edits_of_an_installed_package(cli: Cli, tmp_path: Path) -> None:
    site = install(tmp_path / "ascend", ASCEND, RELEASE)
    edit(site, RUNNER, "(1, 2, 4)", "(1, 2, 4, 8)")
    words = ("new", "sizes", site, "--from-edits", "--patches", cli.team)
    assert cli(*words).exit == 2  # it holds no vLLM
    done = cli(*words, "--releases", "vllm-ascend==all")
    assert done.exit == 0, done.out + done.err
    assert only(cli.team).package == PACKAGE
    assert bases(cli.team) == [RELEASE]


@pytest.fixture
def narrow(cli: Cli) -> Path:
    """A feature that serves the releases before that change."""
    feature_for(cli.team, ASCEND, f"{OLD}..0.26.0rc1", "lengths")
    return cli.team


def test_port_carries_to_releases_of_the_features_package(cli: Cli, narrow: Path) -> None:
    """A bare version is one of the package of the feature that is named; with a name it says it."""
    for release in ("0.27.1rc1", "vllm-ascend==0.27.1rc1"):
        looked = cli("port", "lengths", release, "--patches", narrow)
        assert looked.exit == 0, looked.out + looked.err
    done = cli("port", "--all", "vllm-ascend==0.27.1rc1", "--write", "--patches", narrow)
    assert done.exit == 0, done.out + done.err
    assert str(only(narrow).releases) == f"{OLD}..0.27.1rc1"
    again = cli("port", "lengths", "--releases", "0.27.1rc1", "--write", "--patches", narrow)
    assert "Nothing to port" in again.last


def test_a_port_of_another_package_waits_in_a_session_of_its_own(cli: Cli, narrow: Path) -> None:
    waits = cli("port", "lengths", NEW, "--write", "--patches", narrow)
    assert waits.exit == 1, waits.out + waits.err
    session = Path(f"port-vllm-ascend-{NEW}")
    assert f'package = "{ASCEND}"' in (session / "session.toml").read_text()
    assert cli("port", "--show", session).exit == 1
    (file,) = session.glob(f"*/*/{ASCEND_PROPOSER}")
    text = text_of(NEW)[ASCEND_PROPOSER].decode()
    file.write_text(text.replace("return drafts\n", "return drafts[: self.num_tokens]\n"))
    done = cli("port", "--continue", session)
    assert done.exit in (0, 1), done.out + done.err  # the candidates between may need it, too
    assert not session.exists()
    assert NEW in bases(narrow)


def test_port_refuses_a_release_of_another_package(cli: Cli, narrow: Path) -> None:
    refused = cli("port", "lengths", "vllm==0.33.0", "--patches", narrow)
    assert refused.exit == 2
    assert "expected a feature for vLLM, found one for vllm-ascend" in refused.err
    assert "vllm-ascend==0.26.0rc1" in refused.err


def test_prune_judges_by_the_releases_of_the_package(cli: Cli, narrow: Path) -> None:
    topic = narrow / "lengths/10-propose"
    (whole,) = topic.iterdir()
    whole.rename(topic / f"{OLD}..0.22.1rc1.patch")
    shutil.copy(topic / f"{OLD}..0.22.1rc1.patch", topic / "0.23.0rc1..0.26.0rc1.patch")
    looked = cli("prune", "--patches", narrow)
    assert looked.exit in (0, 1), looked.out + looked.err
    assert f"vllm-ascend {OLD}..{NEW}" in looked.out
    done = cli("prune", "--releases", "0.23.0rc1", "--write", "--patches", narrow)
    assert done.exit == 0, done.out + done.err
    assert spans(narrow) == ["0.23.0rc1..0.26.0rc1"]


def test_prune_of_a_package_without_known_releases_is_refused(cli: Cli) -> None:
    feature_for(cli.team, "transformers", "4.50.0..4.60.0", "team-transformers")
    for words in ((), ("--releases", "4.55.0")):
        refused = cli("prune", *words, "--patches", cli.team)
        assert refused.exit == 2
        assert "transformers" in refused.err


def test_the_matrix_shows_the_releases_of_one_package_and_names_the_others(
    cli: Cli, narrow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves out is told, with the command that shows it."""

    def opened(name: str, **_: object) -> Target:
        version = name.rpartition("==")[2]
        tree = tmp_path / "trees" / version
        if not tree.exists():
            fake_vllm.tree(tree, version, text_of(version), package=ASCEND)
        target = real(str(tree), package=PACKAGE)
        return replace(target, name=name, root=None)

    real = resolution.resolve
    monkeypatch.setattr(resolution, "resolve", opened)
    shown = cli("log", "--matrix", "--releases", "vllm-ascend==all", "--patches", narrow)
    assert shown.exit == 1, shown.out + shown.err
    count = len(PACKAGE.releases)
    letters = next(line.split()[1] for line in shown.out.splitlines() if line.startswith("lengths"))
    assert letters == "P" * (count - len(CHANGED)) + "c" * len(CHANGED)
    assert "vllm-ascend==" not in shown.out.split("lengths")[0]
    few = cli("log", "--matrix", "--releases", "vllm-ascend==0.23.0", "--patches", narrow)
    assert few.last == "Nothing needs you: 1 feature on 1 release of vllm-ascend."
    monkeypatch.setattr(matrix, "releases", lambda *_: ())
    told = cli("log", "--matrix", "--patches", narrow)
    assert "not shown: lengths is for vllm-ascend" in told.out
    step = f"overlay log --matrix --releases vllm-ascend==all --patches {narrow}"
    assert f"`{step}`" in told.out
    answer = cli("log", "--matrix", "--patches", narrow, "--json").json
    jsonschema.Draft202012Validator(SCHEMA).validate(answer)
    (other,) = answer["matrix"]["elsewhere"]
    assert other == {
        "package": "vllm-ascend",
        "features": ["lengths"],
        "releases": "vllm-ascend==all",
    }


def test_a_change_of_two_packages_becomes_two_features(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = ["vllm", "vllm_ascend"]
    real = resolution.resolve

    def resolve(name: str, **options: object) -> object:
        return Release({}, name) if "==" not in name else real(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(resolution, "resolve", resolve)
    more = "".join(
        f"--- /dev/null\n+++ b/{name}/ours.py\n@@ -0,0 +1 @@\n+A = 1\n" for name in packages
    )
    file, ours = tmp_path / "two.diff", tmp_path / "ours"
    file.write_text(more)
    result = cli("import", file, "--id", "both", "--patches", ours)
    assert result.exit == 0, result.err
    assert "Wrote 2 features: both and both-vllm-ascend." in result.out
    assert [feature.package.name for feature in load([ours])] == packages
    alone = cli("import", file, "--id", "one", "--patches", ours, "--releases", "vllm-ascend==all")
    assert alone.exit == 2
    assert "import each by itself" in alone.err
