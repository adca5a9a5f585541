"""Every command of README and the pages runs, or is named here with what runs it.

The sessions of README and of the tutorial are run by ``test_tutorial``, with their output.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from overlay.cli.run import run
from overlay.package import KNOWN_RELEASES
from tests.docs.test_docs import PAGES, commands
from tests.support.patches import write_feature
from tests.test_all_releases import of_patches, unpack

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: The pages whose blocks ``test_tutorial`` runs.
RENDERED = ("README.md", "docs/your-first-patch.md")
#: Where the commands of a patch's life are tested.
LIFE = "tests/authoring/commands"
#: What a call begins with -> why it is not run here, and what runs it.
ELSEWHERE = {
    "verify": "needs an engine: tests/draft_graphs/test_verify_engine.py",
    "bench": "needs an engine: tests/proof/commands/test_bench.py",
    "new": f"has an editor in its story: tests/docs/test_tutorial.py, {LIFE}/test_new.py",
    "edit": f"goes on with a session: tests/docs/test_tutorial.py, {LIFE}/test_edit.py",
    "import": f"needs a change: tests/docs/test_tutorial.py, {LIFE}/test_import.py",
    "port": f"needs a new release: tests/docs/test_keeping_up.py, {LIFE}/test_port.py",
    "prune": f"needs a folder to prune: tests/docs/test_keeping_up.py, {LIFE}/test_prune.py",
    "adopt": "needs patches without a ledger: tests/commands/test_adopt.py",
    "revert --keep-as": "needs an edit: tests/docs/test_tutorial.py",
    "log stop-strings --upstream": "needs a checkout of vLLM: tests/authoring/commands/test_log.py",
    "check --releases all --since": "needs an earlier report: tests/report/test_since.py",
    "check --releases new": "asks the index for newer releases: tests/commands/test_releases.py",
    "check --releases vllm-ascend==": "asks the index: tests/commands/test_packages.py",
    "check vllm-ascend==": "asks the index: tests/commands/test_packages.py",
    "list --releases": "asks the index: tests/commands/test_releases.py",
    "cache clean": "would empty the cache of whoever runs it: tests/commands/test_cache_command.py",
    "check 0.26.0 ./vllm-0.27.0.tar.gz": "needs the file: tests/targets/test_archive.py",
    "check --python .venv/bin/python": "needs that environment: tests/targets/test_environments.py",
}
#: Words that stand for something else: the call is a syntax, and no command.
SYNTAX = re.compile(r"\b[A-Z]{2,}\b|\.\.\.$|\.\.\. |[|\[\]\\]")
WRITING = ("apply", "revert")


def calls() -> list[str]:
    """Each different call of the pages, but those of rendered blocks, without ``overlay``."""
    found = set()
    for name, page in PAGES.items():
        run = [b for b in page.blocks if b.language == "console" or name != "README.md"]
        for line, text in commands(page):
            in_block = any(b.line < line <= b.line + len(b.lines) for b in run)
            # An option that wants a value is named, not called.
            if text.endswith(("--require",)):
                continue
            if not (in_block and name in RENDERED) and not SYNTAX.search(text):
                found.add(text.strip().removeprefix("overlay "))
    return sorted(found)


def elsewhere(call: str) -> str | None:
    """What runs a call that is not run here."""
    return next((why for begin, why in ELSEWHERE.items() if call.startswith(begin)), None)


#: Calls that do the work of another one.
AGAIN = (
    *("check --releases all --json", "report", "doctor --json", "apply --feature draft-graphs"),
    "check --releases all --patches our-patches",
)
HERE = [call for call in calls() if elsewhere(call) is None]


def test_what_is_run_elsewhere_is_named_once_and_run_there() -> None:
    known = calls()
    for begin, why in ELSEWHERE.items():
        assert any(call.startswith(begin) for call in known), f"no page has `overlay {begin}`"
        for file in re.findall(r"tests/\S+\.py", why):
            assert Path(file).is_file() or (Path(__file__).parents[2] / file).is_file(), file
    assert len(HERE) > 25


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages with the files of vLLM 0.26.0 of which patches speak."""
    place = tmp_path_factory.mktemp("pristine") / "site-packages"
    site = unpack("0.26.0", place, of_patches())
    metadata = site / "vllm-0.26.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    return site


@pytest.fixture(scope="module")
def applied(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with every feature applied."""
    site = tmp_path_factory.mktemp("applied") / "site-packages"
    shutil.copytree(pristine, site)
    assert run(["apply", str(site)]) == 0
    return site


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of patches with the features of which the pages speak."""
    folder = tmp_path_factory.mktemp("ours")
    for id_ in ("our-fix", "stop-strings"):
        added = f"files/vllm/v1/{id_.replace('-', '_')}.py"
        write_feature(folder, {added: "VALUE = 1\n"}, id=id_)
    return folder


@pytest.fixture
def work(tmp_path: Path, ours: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A folder to be in, without the caller's variables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "our-patches").symlink_to(ours)
    for name in ("OVERLAY", "OVERLAY_FEATURES", "OVERLAY_REQUIRED", "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OVERLAY_PATCHES", str(ours))
    return monkeypatch


@pytest.mark.parametrize(
    "call",
    [pytest.param(call, marks=pytest.mark.thorough if call in AGAIN else ()) for call in HERE],
)
def test_a_command_of_the_pages_runs(
    call: str,
    pristine: Path,
    applied: Path,
    work: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = shlex.split(call)
    writes = words[0] in WRITING
    site = applied if words[0] in ("status", "revert") else pristine
    if writes:
        site = Path(shutil.copytree(site, tmp_path / "site-packages"))
    work.syspath_prepend(str(site))
    status = run(words)
    printed = capsys.readouterr()
    assert status in ((0,) if writes else (0, 1)), printed.err
    assert printed.out.strip()
    assert "Traceback" not in printed.err
    if call.startswith("check --releases all"):
        assert all(str(release) in printed.out for release in KNOWN_RELEASES)
