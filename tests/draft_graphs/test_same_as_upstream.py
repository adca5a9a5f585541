"""On random batches, the draft graphs draft what upstream's code drafts.

See `upstream_twin`, and `mla_twin` for latent attention.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.mutation_types import TwinMutation
from tests.draft_graphs.test_mutations import once_each
from tests.draft_graphs.test_twins_of_releases import BACKENDS_SINCE
from tests.draft_graphs.twin_mutations import TWIN_MUTATIONS
from tests.engine.private_copy import site_packages
from tests.support.code_edits import edited

pytestmark = pytest.mark.engine

#: Random batches of each shape, by twin: in CI, whose bugs show within five, and with `--thorough`.
CASES = {"upstream_twin.py": (12, 30), "mla_twin.py": (8, 20), "backend_twin.py": (5, 10)}


@dataclass(frozen=True)
class Twins:
    """A patched vLLM, and the process that runs twins in it.

    :ivar module: the folder of the modules that the feature adds.
    :ivar thorough: whether each shape is drawn as many batches as `CASES` has.
    """

    module: Path
    forks: ForkedModules
    thorough: bool

    def cases(self, script: str) -> int:
        """Random batches of each shape of a twin."""
        return CASES[script][self.thorough]

    def run(self, script: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a twin in a process of its own."""
        return self.forks.run(f"tests.draft_graphs.{Path(script).stem}", *options)

    def run_whole(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run all shapes of a twin."""
        return self.run(script, "--cases", str(self.cases(script)))


@pytest.fixture(scope="module")
def twins(patched_python: Path, forks: ForkedModules, pytestconfig: pytest.Config) -> Twins:
    module = site_packages(patched_python) / "vllm/v1/spec_decode/draft_graphs"
    return Twins(module, forks, bool(pytestconfig.getoption("--thorough")))


def drafted(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.rpartition("TWIN ")[2])


@pytest.mark.slow
def test_drafts_and_kv_cache_are_those_of_upstream(twins: Twins) -> None:
    used, cases = drafted(twins.run_whole("upstream_twin.py")), twins.cases("upstream_twin.py")
    # Nothing is shown by a twin that the graphs leave to upstream.
    assert sum(counts["propose used"] for counts in used.values()) > 7 * cases
    assert sum(counts.get("later_steps used", 0) for counts in used.values()) > 2 * cases
    for drafter, counts in used.items():
        assert counts["propose used"] > 5, drafter


@pytest.mark.slow
def test_with_mla_they_are_those_of_upstream(twins: Twins) -> None:
    used, cases = drafted(twins.run_whole("mla_twin.py")), twins.cases("mla_twin.py")
    for backend in ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA", "FLASHINFER_MLA"):
        assert used[backend]["propose used"] > 2 * cases, backend
        assert used[backend]["later_steps used"] >= cases / 2, backend
    alone = used["TRITON_MLA, single tokens"]
    assert "propose used" not in alone
    assert alone["later_steps used"] > 2 * cases


@pytest.mark.slow
def test_with_flashinfer_and_rocm_they_are_those_of_upstream(twins: Twins) -> None:
    """The builders are vLLM's; TRTLLM-gen, XQA and those of ROCm have a double of their kernels."""
    used, cases = drafted(twins.run_whole("backend_twin.py")), twins.cases("backend_twin.py")
    for backend in BACKENDS_SINCE["backend_twin"]:
        assert used[backend]["propose used"] > 2 * cases, backend
        assert used[backend]["later_steps used"] >= cases / 2, backend


@pytest.mark.slow
@pytest.mark.parametrize("mutation", once_each(TWIN_MUTATIONS))
def test_mutation_is_caught(twins: Twins, mutation: TwinMutation) -> None:
    module = twins.module
    files = {file for file, *_ in mutation.changes}
    sources = {file: (module / file).read_text(encoding="utf-8") for file in files}
    try:
        for file, *edit in mutation.changes:
            text = edited((module / file).read_text(encoding="utf-8"), [edit], file)
            (module / file).write_text(text, encoding="utf-8")
        # No batches that the twin does not draw without the bug.
        cases, number, *only = mutation.options
        number = str(min(int(number), twins.cases(mutation.script)))
        ended = twins.run(mutation.script, cases, number, *only)
    finally:
        for file, source in sources.items():
            (module / file).write_text(source, encoding="utf-8")
    assert ended.returncode != 0
    assert mutation.says in ended.stderr, ended.stderr[-3000:]
    assert ("AssertionError: case " in ended.stderr) is mutation.captured


@pytest.mark.parametrize("mutation", TWIN_MUTATIONS, ids=lambda each: each.name)
def test_what_shows_a_mutation_is_shown_to_pass_without(mutation: TwinMutation) -> None:
    """A shape draws the same batches again, whichever other shapes a twin runs."""
    cases, number, only, _ = mutation.options
    assert (cases, only) == ("--cases", "--only")
    assert int(number) <= max(CASES[mutation.script])
