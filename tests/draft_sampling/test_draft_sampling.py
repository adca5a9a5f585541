"""logit_bias and min_p change the logits at each draft as the sampler changes those of one token.

Each release's own samplers and its own check of requests, stock and mended.  Needs PyTorch.
"""

from __future__ import annotations

import ast
import contextlib
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import resolve

torch: Any = pytest.importorskip("torch")  # in the environment of the engine

# isort: split
from tests.draft_sampling.worlds import (
    FEATURE,
    PATH,
    VOCABULARY,
    Asked,
    beside_drafts,
    without_drafts,
    world,
)
from tests.support.code_edits import Edit
from tests.support.sampling_worlds import EFFECTS, REJECTION

pytestmark = pytest.mark.network

EVERY = [str(release) for release in KNOWN_RELEASES]
REFUSED = "not yet supported with speculative decoding"
#: A request without drafts and one of greed among them; a penalty, whose order with a bias matters.
SEVERAL = [
    Asked(2, temperature=0.7, min_p=0.3),
    Asked(0, min_p=0.9, bias=((4, 9.0),)),
    Asked(3, temperature=0.0, bias=((1, 2.5), (5, -100.0))),
    Asked(1, temperature=1.4, min_p=0.1, bias=((0, 1.5), (3, -2.0)), repetition=1.7),
    Asked(2, banned=(0, 2), bias=((2, 50.0),)),
    Asked(1),
]


def logits_for(requests: list[Asked], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(each.drafts for each in requests), VOCABULARY, generator=generator) * 2


def differs(release: str, mended: bool, requests: list[Asked], bug: Edit | None = None) -> bool:
    """Whether rejection sampling is handed other logits than the sampler without drafts."""
    here, logits = world(release, mended, bug), logits_for(requests, 5)
    beside, alone = (f(here, requests, logits) for f in (beside_drafts, without_drafts))
    return not torch.allclose(beside, alone, atol=1e-6)


@pytest.mark.parametrize("release", EVERY)
def test_every_release_has_the_fault_and_is_mended(release: str) -> None:
    assert differs(release, False, SEVERAL)
    assert not differs(release, False, [Asked(2), Asked(1, temperature=0.5)])
    assert not differs(release, True, SEVERAL)


ASKED = st.builds(
    Asked,
    drafts=st.integers(0, 3),
    temperature=st.sampled_from((0.3, 1.0, 2.0)),
    min_p=st.sampled_from((0.0, 0.05, 0.5, 1.0)),
    bias=st.dictionaries(
        st.integers(0, VOCABULARY - 1), st.sampled_from((-100.0, -1.0, 0.5, 100.0)), max_size=3
    ).map(lambda bias: tuple(bias.items())),
    banned=st.sampled_from(((), (1, 2))),
    repetition=st.sampled_from((1.0, 0.5, 2.0)),
)


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(ASKED, min_size=1, max_size=4).filter(
        lambda all_: any(a.drafts for a in all_)
    )
)
def test_whatever_is_asked_each_row_is_the_samplers(requests: list[Asked]) -> None:
    assert not differs("0.33.0", True, requests)


def check_of(release: str) -> Any:
    """A release's own check of a request beside drafts."""
    text = resolve(release).read("vllm/sampling_params.py")
    assert text is not None
    (node,) = (
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.FunctionDef) and each.name == "_validate_spec_decode"
    )
    node.args.args[1].annotation = None
    names: dict[str, Any] = {"_SAMPLING_EPS": 1e-5, "VLLMValidationError": ValueError}
    exec(compile(ast.Module([node], []), release, "exec"), names)
    return names["_validate_spec_decode"]


#: A ParallelConfig: one engine on this machine.
HERE = {
    "nnodes": 1,
    "data_parallel_size": 2,
    "data_parallel_size_local": 2,
    "distributed_executor_backend": "mp",
    "data_parallel_backend": "mp",
}


def speculative(adaptive: bool = False, **elsewhere: Any) -> Any:
    """A SpeculativeConfig."""
    return SimpleNamespace(
        enable_adaptive_verification=adaptive,
        target_parallel_config=SimpleNamespace(**HERE | elsewhere),
    )


SPECULATIVE = speculative()


def asks(**further: Any) -> Any:
    return SimpleNamespace(**{"min_p": 0.0, "logit_bias": None, "num_logprobs": None} | further)


def lifted(check: Any, *, out_of_tree: bool = False, environ: dict[str, str] | None = None) -> Any:
    """What checks requests in a process of a mended vLLM whose check is this one."""
    here = world("0.33.0", True)
    feature = here.module(FEATURE)
    kind: Any = type("SamplingParams", (), {"_validate_spec_decode": check})
    platform = SimpleNamespace(is_out_of_tree=lambda: out_of_tree, is_tpu=lambda: False)
    modules = {
        "vllm.sampling_params": SimpleNamespace(SamplingParams=kind),
        "vllm.platforms": SimpleNamespace(current_platform=platform),
    }
    with mock.patch.dict(here._modules, modules), mock.patch.dict("os.environ", environ or {}):
        feature.allow_requests()

        def check_in_process(parameters: Any, asked: Any) -> None:
            with (
                mock.patch.dict(here._modules, modules),
                mock.patch.dict("os.environ", environ or {}),
            ):
                kind._validate_spec_decode(parameters, asked)

    return check_in_process


@pytest.mark.parametrize("release", EVERY)
@pytest.mark.parametrize("asked", [{"min_p": 0.1}, {"logit_bias": {1: 2.0}}], ids=["p", "bias"])
def test_every_release_refuses_and_is_mended(release: str, asked: dict[str, Any]) -> None:
    check, parameters = check_of(release), asks(**asked)
    with pytest.raises(ValueError, match=REFUSED):
        check(parameters, SPECULATIVE)
    lifted(check)(parameters, SPECULATIVE)
    assert vars(parameters) == vars(asks(**asked))


@pytest.mark.parametrize(
    "world_of",
    [{"out_of_tree": True}, {"environ": {"OVERLAY_DRAFT_SAMPLING": "off"}}],
    ids=["another platform's samplers", "off"],
)
def test_what_is_not_mended_stays_refused(world_of: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        lifted(check_of("0.33.0"), **world_of)(asks(min_p=0.1), SPECULATIVE)


def test_other_refusals_stay() -> None:
    """0.28.0 refuses log probabilities beside adaptive verification in the same check."""
    with pytest.raises(ValueError, match="logprobs are not supported"):
        lifted(check_of("0.28.0"))(asks(min_p=0.1, num_logprobs=1), speculative(adaptive=True))


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"nnodes": 2},
        {"data_parallel_size": 4},
        {"data_parallel_backend": "ray"},
        {"distributed_executor_backend": "ray"},
    ],
    ids=lambda elsewhere: next(iter(elsewhere)),
)
def test_where_engines_may_run_on_other_machines_it_is_asked_for(
    elsewhere: dict[str, Any],
) -> None:
    """A stock vLLM there would leave both out without a word."""
    check, several = check_of("0.33.0"), speculative(**elsewhere)
    feature = world("0.33.0", True).module(FEATURE)
    with mock.patch.object(feature, "logger") as logger:
        lifted(check)(asks(), several)
        assert not logger.mock_calls
        with pytest.raises(ValueError, match=REFUSED):
            lifted(check)(asks(min_p=0.1), several)
        with pytest.raises(ValueError, match=REFUSED):
            lifted(check)(asks(logit_bias={1: 2.0}), several)
    assert logger.mock_calls == [mock.call.warning_once(mock.ANY, feature.ELSEWHERE)] * 2
    assert "OVERLAY_DRAFT_SAMPLING=everywhere" in feature.ELSEWHERE
    lifted(check, environ={"OVERLAY_DRAFT_SAMPLING": "everywhere"})(asks(min_p=0.1), several)


def test_what_is_served_is_reported() -> None:
    here = world("0.33.0", True)
    check = lifted(check_of("0.33.0"))

    def seen() -> tuple[str, int]:
        told = here.module(EFFECTS).effects()[here.module(FEATURE).FEATURE]
        return told["state"], told["counts"].get(here.module(FEATURE).REQUESTS, 0)

    before = seen()
    check(asks(min_p=0.1), None)
    assert seen() == ("idle", before[1])
    check(asks(), SPECULATIVE)
    assert seen() == ("active", before[1])
    check(asks(min_p=0.1), SPECULATIVE)
    assert seen() == ("active", before[1] + 1)


@pytest.mark.parametrize("release", EVERY)
def test_a_draft_that_is_none_is_rejected_from_0_25_on(release: str) -> None:
    """Before, its chance is read from before its row: of another draft, or from outside."""
    kernel = world(release, False).module(REJECTION).rejection_random_sample_kernel
    faulty = Version(release) < Version("0.25.0")
    for none, ended in ((1, False), (0, True)):
        said, drafts = torch.full((2, 2), 9, dtype=torch.int32), torch.tensor([2, 2])
        drafts[none] = -1
        chances = torch.zeros(2, VOCABULARY)
        chances[:, [2, VOCABULARY - 1]] = 0.5
        given = {
            "output_token_ids_ptr": said,
            "cu_num_draft_tokens_ptr": torch.tensor([1, 2]),
            "draft_token_ids_ptr": drafts,
            "draft_probs_ptr": None,
            "target_probs_ptr": chances,
            "bonus_token_ids_ptr": torch.tensor([3, 3]),
            "recovered_token_ids_ptr": torch.tensor([4, 4]),
            "uniform_probs_ptr": torch.tensor([0.4, 0.4]),
            "is_greedy_ptr": torch.tensor([False, False]),
            "max_spec_len": 1,
            "vocab_size": VOCABULARY,
            "synthetic_conditional_rates_ptr": None,
            "NO_DRAFT_PROBS": True,
            "SYNTHETIC_MODE": False,
        }
        with pytest.raises(IndexError) if faulty and ended else contextlib.nullcontext():
            kernel[(2,)](**given)
            assert said[1 - none].tolist() == [2, 3]
            assert said[none].tolist() == ([-1, 3] if faulty else [4, 9])


#: An edit of the feature's module, which the comparison notices.
BUGS: dict[str, Edit] = {
    "another row": (
        PATH,
        "_add",
        "np.arange(first[request], first[request + 1])",
        "np.arange(first[request] + 1, first[request + 1])",
    ),
    "another request's min_p": (
        PATH,
        "apply_min_p",
        "processor.min_p[requests]",
        "processor.min_p.flip(0)[requests]",
    ),
    "the likeliest is kept out": (PATH, "apply_min_p", "chances < least", "chances <= least"),
    "min_p of all chances": (
        PATH,
        "apply_min_p",
        "logits.softmax(dim=-1)",
        "logits.softmax(dim=0)",
    ),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_a_bug_is_noticed(bug: Edit) -> None:
    noticed = True
    with contextlib.suppress(IndexError, RuntimeError):  # it may end the step, too
        noticed = differs("0.33.0", True, SEVERAL, bug)
    assert noticed
