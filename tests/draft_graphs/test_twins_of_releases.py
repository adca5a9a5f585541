"""The twins of `test_same_as_upstream.py` on the Python sources of every release.

The compiled libraries are those of the engine's vLLM: what differs between releases and matters
here is Python. On the releases of the engine and of a few others CI runs the twins as well.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.version import Version

from overlay.package import VLLM
from tests.engine.engine_fixtures import overlay
from tests.engine.engine_launch import append_path, foreign_environment, link_packages
from tests.engine.private_copy import site_packages
from tests.support.release_sources import unpack

pytestmark = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.slow,
    # Half an hour for all of them; test_same_as_upstream.py has the same twins on one release.
    pytest.mark.thorough,
]

TESTS = Path(__file__).parents[1]
#: A package that vLLM imports until 0.24 and calls for files of that format only.
GGUF = "def __getattr__(name):\n    return type(name, (), {})\n"
#: Random batches of each shape.
CASES = 4
#: The release that a drafter, or what is special to it, exists from.
SINCE = {
    **dict.fromkeys(("eagle", "eagle3", "mtp", "draft_model", "PARD", "P-EAGLE"), "0.20.0"),
    "dflash": "0.20.0",
    "sampled": "0.22.0",
    "ranges": "0.24.0",
    "vocabularies": "0.25.0",
}
#: The same of backends, by the twin that has them.
BACKENDS_SINCE = {
    "mla_twin": {
        **dict.fromkeys(("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA"), "0.20.0"),
        "TRITON_MLA": "0.22.0",
        "TRITON_MLA, single tokens": "0.22.0",
    },
    "backend_twin": {
        **dict.fromkeys(("TRTLLM-gen", "ROCM_ATTN", "ROCM_AITER_FA"), "0.20.0"),
        "ROCM_AITER_UNIFIED_ATTN": "0.20.0",
        "XQA": "0.25.0",
    },
}


class Site(NamedTuple):
    """The patched sources of a release, and who runs them."""

    release: str
    python: Path
    environment: dict[str, str]
    folder: Path

    def drafted(self, twin: str) -> dict[str, dict[str, int]]:
        """What a twin drafted how, by drafter or backend; all of it as upstream does."""
        ended = subprocess.run(
            [str(self.python), "-m", f"tests.draft_graphs.{twin}", "--cases", str(CASES)],
            cwd=self.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            check=False,
            timeout=1800,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        used: dict[str, dict[str, int]] = json.loads(ended.stdout.rpartition("TWIN ")[2])
        return used

    def has(self, since: dict[str, str]) -> set[str]:
        """Those that exist in this release."""
        release = Version(self.release)
        return {name for name, first in since.items() if release >= Version(first)}


@pytest.fixture(scope="module", params=VLLM.releases)
def site(
    request: pytest.FixtureRequest, engine_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    release: str = request.param
    folder = tmp_path_factory.mktemp(release)
    site = folder / "site"
    # vLLM chooses its platform for CPUs by the name of its version.
    unpack(VLLM, release, site, version=f"{release}+cpu")
    compiled = site_packages(engine_python) / "vllm"
    for library in compiled.rglob("*.so"):
        (site / "vllm" / library.relative_to(compiled)).symlink_to(library)
    overlay("apply", site, "--feature", "draft-graphs")
    stub = folder / "stub" / "gguf"
    stub.mkdir(parents=True)
    for module in ("__init__", "constants", "quants"):
        (stub / f"{module}.py").write_text(GGUF, encoding="utf-8")
    environment = foreign_environment()
    for part in (site, link_packages(folder / "code", (TESTS,)), stub.parent):
        environment = append_path(environment, part)
    yield Site(release, engine_python, environment, folder)
    shutil.rmtree(folder)  # 60 MB


def expect_all(site: Site, used: dict[str, Any], since: dict[str, str]) -> None:
    """Each drafter of the release was drafted for by graphs, and no other is counted."""
    drafted = {name for name, counts in used.items() if counts}
    assert drafted == site.has(since)
    for name in drafted:
        passes = used[name].get("propose used", 0) + used[name].get("later_steps used", 0)
        assert passes > 0, f"{name} was left to upstream"


def test_every_drafter_drafts_as_upstream(site: Site) -> None:
    expect_all(site, site.drafted("upstream_twin"), SINCE)


@pytest.mark.parametrize("twin", BACKENDS_SINCE)
def test_so_does_every_backend_of_which_the_kernels_have_a_double(site: Site, twin: str) -> None:
    expect_all(site, site.drafted(twin), BACKENDS_SINCE[twin])
