"""What is sampled beside drafts has the distribution of what is sampled without. Needs PyTorch.

A release's own rejection sampler and kernels, stock and mended, against the chances that follow
from the logits by the definition of the parameters.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")  # in the environment of the engine

# isort: split
from overlay.package import KNOWN_RELEASES
from tests.draft_sampling.chi_square import differs_from, limit
from tests.draft_sampling.worlds import (
    PATH,
    VOCABULARY,
    Asked,
    Sampling,
    batch,
    without_drafts,
    world,
)
from tests.support.code_edits import Edit
from tests.support.sampling_worlds import REJECTION, SAMPLER, code

pytestmark = pytest.mark.network

SEED, REQUESTS, K = 39, 160, 2
ASKED = Asked(K, temperature=0.6, min_p=0.15, bias=((0, 1.4), (3, -1.0), (5, 1.2)))
#: Behind 0, 1 and 2 drafts.  min_p leaves four likely tokens of eight each, and none by a hair.
LOGITS = (
    (1.4, 2.0, 1.8, 2.0, 0.9, 1.1, -0.5, -1.0),
    (0.5, 1.8, 1.9, 2.0, 0.5, 1.4, 0.5, 1.1),
    (0.7, 2.2, 1.4, 1.6, 0.7, 0.2, -2.0, 0.3),
)
#: The drafts: mostly the likeliest, now and then one that min_p rules out and one that it leaves.
DRAFTS = ((0, 5), (0, 5), (0, 5), (4, 6), (0, 5), (0, 1), (0, 5), (5, 3))


def chances(asked: Asked, logits: tuple[float, ...]) -> dict[int, float]:
    """Of each token, by the definition of logit_bias, temperature and min_p."""
    biased = torch.tensor(logits) + torch.tensor(
        [dict(asked.bias).get(token, 0.0) for token in range(VOCABULARY)]
    )
    spread = (biased / asked.temperature).softmax(dim=0)
    kept = spread * (spread >= asked.min_p * spread.max())
    return dict(enumerate((kept / kept.sum()).tolist()))


def served(here: Sampling, asked: Asked, size: int = REQUESTS) -> Any:
    """Tokens of requests, [size, K + 1]; -1 behind a rejected draft."""
    rows = torch.arange(size * (K + 1)).view(size, K + 1)
    each = torch.arange(size, dtype=torch.int32) + 1
    drafts = torch.tensor(DRAFTS, dtype=torch.int32).repeat(size // len(DRAFTS), 1)
    metadata = here.module("vllm.v1.spec_decode.metadata").SpecDecodeMetadata(
        draft_token_ids=drafts.flatten(),
        num_draft_tokens=[K] * size,
        cu_num_draft_tokens=each * K,
        cu_num_sampled_tokens=each * (K + 1),
        target_logits_indices=rows[:, :K].flatten(),
        bonus_logits_indices=rows[:, K],
        logits_indices=rows.flatten(),
    )
    rejection = here.module(REJECTION).RejectionSampler(here.module(SAMPLER).Sampler())
    metadata_of = batch(here, [asked] * size)
    logits = torch.tensor(LOGITS).repeat(size, 1)
    return rejection(metadata, None, logits, metadata_of).sampled_token_ids


def wrong_places(here: Sampling) -> list[int]:
    """Behind how many drafts the tokens have another distribution than they should."""
    torch.manual_seed(SEED)
    tokens = served(here, ASKED)
    return [
        place
        for place in range(K + 1)
        if differs_from(tokens[:, place].tolist(), chances(ASKED, LOGITS[place]))
    ]


def test_the_chances_are_the_samplers_own() -> None:
    """What the distributions are judged by is what is sampled without drafts."""
    asked = Asked(K + 1, ASKED.temperature, ASKED.min_p, ASKED.bias)
    logits = without_drafts(world("0.33.0", False), [asked], torch.tensor(LOGITS))
    for place, row in enumerate(logits.softmax(dim=-1)):
        due = chances(ASKED, LOGITS[place])
        assert row.tolist() == pytest.approx(list(due.values()), abs=1e-6)
        assert sum(chance > 0.08 for chance in due.values()) == 4
        assert sum(chance == 0 for chance in due.values()) == 4


@functools.cache
def distinct() -> list[str]:
    """The last release of each text of what is patched."""
    texts = {code(str(release)): str(release) for release in KNOWN_RELEASES}
    return sorted(texts.values())


def test_the_distribution_beside_drafts_is_that_without() -> None:
    assert wrong_places(world("0.33.0", True)) == []
    assert wrong_places(world("0.33.0", False)) == [0, 1, 2]


def test_every_release_samples_what_the_last_one_does() -> None:
    tokens = {}
    for release in distinct():
        torch.manual_seed(SEED)
        tokens[release] = served(world(release, True), ASKED, 2 * len(DRAFTS)).tolist()
    assert all(each == tokens["0.33.0"] for each in tokens.values()), tokens


REJECTION_PATH = f"{REJECTION.replace('.', '/')}.py"
SAMPLER_PATH = f"{SAMPLER.replace('.', '/')}.py"
CONSTRAINTS = "apply_sampling_constraints"
MIN_P = "logits = apply_min_p(logits, cu_num_draft_tokens, sampling_metadata)"
PROCESSORS = "RejectionSampler.apply_logits_processors"
BIAS = "logits = apply_bias(logits, sampling_metadata, metadata)"
_MIN_TOKENS, _BIAS, _MIN_P = (
    f"{kind}LogitsProcessor" for kind in ("MinTokens", "LogitBias", "MinP")
)
BUILT = ("build_logitsprocs", f"({_MIN_TOKENS}, {_BIAS}, {_MIN_P})")
#: A mistake -> behind how many drafts the distribution is another one, at least.
BUGS: dict[str, tuple[Edit, set[int]]] = {
    "min_p for the bonus token only": ((REJECTION_PATH, CONSTRAINTS, MIN_P, "pass"), {0, 1}),
    "bias for the bonus token only": ((REJECTION_PATH, PROCESSORS, BIAS, "pass"), {0, 1}),
    "bias at drafts only": (
        (
            SAMPLER_PATH,
            "Sampler.apply_logits_processors",
            "logits = processor.apply(logits)",
            "pass",
        ),
        {2},
    ),
    "min_p at drafts only": (
        (SAMPLER_PATH, "Sampler.sample", "logits = processor.apply(logits)", "pass"),
        {2},
    ),
    "no bias in the batch": ((PATH, *BUILT, f"({_MIN_TOKENS}, {_MIN_P})"), {0, 1, 2}),
    "no min_p in the batch": ((PATH, *BUILT, f"({_MIN_TOKENS}, {_BIAS})"), {0, 1, 2}),
    "bias at a request's first draft only": (
        (PATH, "_add", "first[request + 1]", "first[request] + 1"),
        {1},
    ),
    "min_p before the temperature": (
        (
            PATH,
            "apply_min_p",
            "logits.softmax(dim=-1)",
            f"(logits * {ASKED.temperature}).softmax(-1)",
        ),
        {0, 1},
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_mistake_gives_another_distribution(name: str) -> None:
    bug, places = BUGS[name]
    assert places <= set(wrong_places(world("0.33.0", True, bug)))


def test_the_limit_is_that_of_tables() -> None:
    """The quantiles of 0.9999; the approximation is the coarser the fewer degrees there are."""
    assert limit(1) == pytest.approx(15.14, rel=0.08)
    assert limit(9) == pytest.approx(33.72, rel=0.02)


def test_what_may_not_come_is_wrong_however_rare() -> None:
    assert differs_from([0] * 50 + [1], {0: 1.0, 1: 0.0})
    assert not differs_from([0] * 50 + [-1], {0: 1.0})
