"""vllm-ascend drafts what vLLM drafts, once later passes leave rejected tokens out.

See `twin`. One process a release runs all shapes, with the feature and without it, and then the
mutations.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overlay.package import package_named
from tests.ascend.mutations import ASCEND_MUTATIONS, AscendMutation
from tests.ascend.sources import QUICK, make_site
from tests.engine.engine_fixtures import overlay
from tests.engine.engine_launch import append_path, foreign_environment, link_packages

pytestmark = [pytest.mark.engine, pytest.mark.network]

TESTS = Path(__file__).parents[1]
RELEASES = package_named("vllm_ascend").releases
THOROUGH = [
    # CI has one release of each way in which vllm-ascend updates its graphs.
    pytest.param(release, marks=() if release in QUICK else pytest.mark.thorough)
    for release in RELEASES
]


@dataclass(frozen=True)
class Twin:
    """What one run of the twin has said."""

    release: str
    results: tuple[dict[str, Any], ...]
    mutations: dict[str, str]

    def of(self, **shape: Any) -> list[dict[str, Any]]:
        """The results of shapes."""
        found = [
            result
            for result in self.results
            if all(result["shape"][name] == value for name, value in shape.items())
        ]
        assert found, f"no shape has {shape}"
        return found


_RUNS: dict[str, Twin | AssertionError] = {}


@pytest.fixture
def twin(
    request: pytest.FixtureRequest,
    ascend_python: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Twin:
    """The run of a release, which all tests of it share."""
    release: str = request.param
    if release not in _RUNS:
        folder = tmp_path_factory.mktemp("ascend")
        try:
            drafts = () if request.config.getoption("--thorough") else DRAFTS.get(release, ())
            _RUNS[release] = run(ascend_python, release, folder, drafts)
        except AssertionError as error:
            _RUNS[release] = error  # takes minutes, and would end in the same way
        shutil.rmtree(folder)
    outcome = _RUNS[release]
    if isinstance(outcome, AssertionError):
        raise outcome
    return outcome


#: The numbers of drafts that CI tries on each release; ``--thorough`` tries each on both.
DRAFTS = dict(zip(QUICK, ((1, 5), (3, 10)), strict=True))


def run(python: Path, release: str, folder: Path, drafts: Sequence[int] = ()) -> Twin:
    """Patch a release by the command, and run the twin in it.

    :param drafts: how many there are a step; none given: all of the twin's.
    """
    site = make_site(release, folder / "site")
    overlay("apply", site, "--feature", "ascend-draft-lengths")
    code = link_packages(folder / "code", (TESTS,))
    environment = append_path(foreign_environment(), code)
    environment["PYTHONPATH"] = f"{site}{os.pathsep}{environment['PYTHONPATH']}"
    # torch would load torch_npu while it is itself being imported.
    environment |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "SOC_VERSION": "ascend910b1"}
    ended = subprocess.run(
        [
            *(str(python), "-m", "tests.ascend.twin", "--mutations"),
            *(word for k in drafts for word in ("--k", str(k))),
        ],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = json.loads(ended.stdout.rpartition("TWIN ")[2])
    return Twin(release, tuple(said["results"]), said["mutations"])


def differ(result: dict[str, Any]) -> bool:
    """Whether any draft of a row with rejected tokens is another than vLLM's."""
    return any(result["rejected"])


@pytest.mark.slow
@pytest.mark.parametrize("twin", THOROUGH, indirect=True)
def test_with_the_feature_all_drafts_are_those_of_vllm(twin: Twin) -> None:
    for result in twin.of(switch="on", enpu=False):
        assert not differ(result), result
        assert min(result["rows"]) > 0, result


@pytest.mark.slow
@pytest.mark.parametrize("twin", THOROUGH, indirect=True)
def test_rows_without_rejected_tokens_are_those_of_vllm_in_any_case(twin: Twin) -> None:
    for result in twin.results:
        # 0.20.2rc1 takes lengths of the host for too long one token early; later ones do not.
        if twin.release != "0.20.2rc1" or result["shape"]["attention"] == "tensor":
            assert not any(result["others"]), result


@pytest.mark.slow
@pytest.mark.parametrize("twin", THOROUGH, indirect=True)
def test_without_it_later_passes_attend_to_rejected_tokens(twin: Twin) -> None:
    upstream_has_it = RELEASES.index(twin.release) >= RELEASES.index("0.30.0rc1")
    for result in twin.of(switch="off"):
        on_device = result["shape"]["attention"] == "tensor"
        assert differ(result) is not (on_device and upstream_has_it), result
        assert result["rejected"][0] == 0, "pass 0 is right"
        assert result["waits"] == []


@pytest.mark.slow
@pytest.mark.parametrize("twin", THOROUGH, indirect=True)
def test_the_device_half_mends_lengths_on_the_device_and_no_others(twin: Twin) -> None:
    for result in twin.of(switch="device"):
        assert differ(result) is not (result["shape"]["attention"] == "tensor"), result
        assert result["waits"] == []


@pytest.mark.slow
@pytest.mark.parametrize("twin", THOROUGH, indirect=True)
def test_a_full_graph_is_replayed_once_a_draft(twin: Twin) -> None:
    """What vllm-ascend's merged draft promises: all passes are one graph, updated at once."""
    for result in twin.of(mode="full", attention="mla"):
        # All batches of MLA are uniform here, so each has a graph.
        assert result["replays"] == result["batches"], result
    for result in twin.of(mode="full", attention="dense"):
        assert 0 < result["replays"] <= result["batches"], result


@pytest.mark.slow
@pytest.mark.parametrize("twin", THOROUGH, indirect=True)
def test_the_host_waits_for_counts_only_when_pass_0_has_what_it_needs(twin: Twin) -> None:
    for result in twin.of(mode="full", switch="on", enpu=False):
        attention, k = result["shape"]["attention"], result["shape"]["k"]
        if attention != "tensor" and k > 1:
            assert result["waits"], result
        assert all(passed >= 1 for passed in result["waits"]), result


@pytest.mark.slow
@pytest.mark.parametrize("twin", THOROUGH, indirect=True)
def test_with_enpu_all_updates_come_before_the_replay_and_the_host_half_is_idle(twin: Twin) -> None:
    for result in twin.of(enpu=True):
        assert result["replays"] > 0
        assert result["waits"] == []
        assert differ(result) is (result["shape"]["attention"] != "tensor"), result


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ASCEND_MUTATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("twin", QUICK, indirect=True)
def test_mutation_is_caught(twin: Twin, mutation: AscendMutation) -> None:
    answer = twin.mutations[mutation.name]
    if mutation.name in without_code(twin.release):
        assert answer == "nothing", "a part of the feature runs that this release does not call"
    else:
        assert (mutation.says or "twin") in answer


def without_code(release: str) -> set[str]:
    """Mutations of what a release does not call: from 0.30.0rc1 on upstream has the device half."""
    if RELEASES.index(release) < RELEASES.index("0.30.0rc1"):
        return set()
    return {
        each.name for each in ASCEND_MUTATIONS if each.edits and each.edits[0][0] == "on_device"
    }


#: Seven hazards, each with the mutation that stands for it.
HAZARDS = {
    "device half only": "the device half only, with lengths on the host",
    "host half only": "the host half only, with lengths on the device",
    "in place on the shared tensor": "lengths of the device are corrected in place, in the tensor "
    "that pass 0 reads",
    "one pass late": "a pass is settled when the one behind it is launched",
    "an update left out": "the update of one task group is left out",
    "two swapped": "two task groups get each other's update",
    "event before update": "an event is recorded before the update that it is for",
}


@pytest.mark.parametrize("release", QUICK)
def test_each_hazard_that_a_release_has_is_a_mutation(release: str) -> None:
    """Where upstream has the device half, nothing of the feature can break that half."""
    names = {mutation.name for mutation in ASCEND_MUTATIONS}
    assert names >= set(HAZARDS.values())
    caught = {hazard for hazard, name in HAZARDS.items() if name not in without_code(release)}
    upstreams = {"host half only", "in place on the shared tensor"}
    assert caught == (HAZARDS.keys() if release == QUICK[0] else HAZARDS.keys() - upstreams)
