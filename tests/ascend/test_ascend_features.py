"""The shipped features of vllm-ascend against its real releases."""

from __future__ import annotations

import functools

import pytest

from overlay._features.folder import holes, load
from overlay._features.model import Feature
from overlay._features.sources import shipped_folder
from overlay.package import package_named
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.results import Plan, State
from overlay.targets.resolution import resolve
from tests.ascend.mutations import ASCEND_MUTATIONS

ASCEND = package_named("vllm_ascend")
LENGTHS, MERGED = "ascend-draft-lengths", "ascend-merged-draft"
#: Since then upstream takes rejected tokens off lengths on the device.
DEVICE_HALF = "0.30.0rc1"
MODULE = "vllm_ascend/spec_decode/draft_lengths.py"
PROPOSER = "vllm_ascend/spec_decode/llm_base_proposer.py"
GRAPHS = "vllm_ascend/compilation/acl_graph.py"
SYNTAX = Syntax()


@functools.cache
def shipped() -> dict[str, Feature]:
    features = load([shipped_folder()])
    return {each.id: each for each in features if each.package == ASCEND}


@functools.cache
def planned(release: str) -> Plan:
    target = resolve(f"{ASCEND.distribution}=={release}")
    return plan(tuple(shipped().values()), target, target.release, target.record, SYNTAX)


def has_device_half(release: str) -> bool:
    return ASCEND.releases.index(release) >= ASCEND.releases.index(DEVICE_HALF)


def test_they_cover_every_known_release() -> None:
    assert set(shipped()) == {LENGTHS, MERGED}
    for feature in shipped().values():
        assert holes(feature) == ()
        assert str(feature.releases) == f"{ASCEND.releases[0]}..{ASCEND.releases[-1]}"


def test_hooks_only_add_between_as_much_context_on_both_sides() -> None:
    variants = [each for topic in shipped()[LENGTHS].topics for each in topic.variants]
    for variant in variants:
        for hunk in variant.patch.hunks:
            ops = "".join(op for op, _ in hunk.lines)
            before, behind = len(ops) - len(ops.lstrip(" ")), len(ops) - len(ops.rstrip(" "))
            assert "-" not in ops
            assert 0 < before == behind, (variant.patch.name, hunk.scope)


def test_only_the_device_half_is_retired() -> None:
    retired = {
        (topic.name, str(variant.releases))
        for topic in shipped()[LENGTHS].topics
        for variant in topic.variants
        if variant.patch.retired
    }
    assert retired == {("10-device", f"{DEVICE_HALF}..{ASCEND.releases[-1]}")}


@pytest.mark.network
@pytest.mark.parametrize("release", ASCEND.releases)
def test_every_release_can_be_patched(release: str) -> None:
    result = next(each for each in planned(release).features if each.feature == LENGTHS)
    assert result.state is State.PRISTINE
    scopes = {
        (file.path, hunk.scope)
        for file in result.files
        for hunk in file.hunks
        if hunk.state is State.PRISTINE
    }
    proposer = "AscendSpecDecodeBaseProposer"
    updated = {(GRAPHS, "update_full_graph_params")}
    if ASCEND.releases.index(release) >= ASCEND.releases.index("0.29.0rc1"):
        updated.add((GRAPHS, "ACLGraphWrapper._updatable_graph_replay"))
    assert scopes == updated | {
        (PROPOSER, f"{proposer}._propose"),
        (PROPOSER, f"{proposer}._run_merged_draft"),
    }


@pytest.mark.network
@pytest.mark.parametrize("release", ASCEND.releases)
def test_upstream_has_the_device_half_where_it_is_retired(release: str) -> None:
    content = resolve(f"{ASCEND.distribution}=={release}").read(PROPOSER)
    assert content is not None
    subtracts = b"next_step_seq_lens[:batch_size].sub_(num_rejected_tokens_gpu"
    assert (subtracts in content) is has_device_half(release)


@pytest.mark.network
@pytest.mark.parametrize("release", ASCEND.releases)
def test_the_merged_draft_is_a_record(release: str) -> None:
    result = next(each for each in planned(release).features if each.feature == MERGED)
    assert result.state is State.UPSTREAMED


def test_every_mutation_has_a_name_of_its_own() -> None:
    names = [mutation.name for mutation in ASCEND_MUTATIONS]
    assert len(set(names)) == len(names)
    for mutation in ASCEND_MUTATIONS:
        assert bool(mutation.edits) is not bool(mutation.sabotage)
        assert bool(mutation.says) is (mutation.catcher == "graph double")
