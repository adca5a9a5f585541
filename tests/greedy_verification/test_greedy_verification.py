"""Greedy verification: what it samples is what upstream's own `RejectionSampler` samples."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.package import KNOWN_RELEASES

torch: Any = pytest.importorskip("torch")  # in the environment of the engine

from tests.support.rejection_batches import (
    SIZES,
    TYPES,
    VALUES,
    Batch,
    batches,
    make,
    outcome,
)
from tests.support.rejection_scenarios import (
    LEFT,
    NOT_PLAIN,
    PLAIN,
    Change,
    peaked,
)
from tests.support.sampling_worlds import FEATURE, SPLIT_ALWAYS, code, world
from tests.support.triton_by_hand import seen

pytestmark = pytest.mark.network

PATCHES = Path(__file__).resolve().parents[2] / "patches"
FILE = PATCHES / "greedy-verification/files" / f"{FEATURE.replace('.', '/')}.py"
SISTER = PATCHES / "draft-graphs/files/vllm/v1/spec_decode/draft_graphs/argmax.py"
CHANGED = (
    *("0.20.0", "0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0"),
    *("0.26.0", "0.27.0", "0.30.0", "0.32.0", "0.33.0"),
)
SCENARIOS = [
    pytest.param(release, change, id=f"{release}-{change.__name__}")
    for change, first in NOT_PLAIN.items()
    for release in CHANGED
    if Version(release) >= Version(first)
]
feature = world("0.33.0", True).module(FEATURE)


def must_not_run(*_: Any, **__: Any) -> None:
    raise AssertionError("a plain batch came to upstream's own sampling")


def check_short(release: str, batch: Batch, change: Change, source: str | None = None) -> None:
    """A plain batch goes the short way, to the same end."""
    upstream = make(release, batch, patched=False)
    ours = make(release, batch, patched=True, feature=source)
    change(upstream)
    change(ours)
    ours.sampler.sampler.forward = must_not_run
    assert outcome(ours) == outcome(upstream)


def check_long(release: str, change: Change, source: str | None = None) -> None:
    """A batch that is not plain ends as upstream ends it, which is not as a plain one ends."""
    upstream = make(release, peaked(), patched=False)
    ours = make(release, peaked(), patched=True, feature=source)
    as_plain = outcome(upstream)
    change(upstream)
    change(ours)
    expected = outcome(upstream)
    assert [expected[name] != as_plain[name] for name in ("tokens", "logprobs")] != [False, False]
    assert outcome(ours) == expected


def check_left(change: Change, source: str | None = None) -> None:
    """The feature says of a batch that it is not its own, and leaves everything as it was."""
    case = make("0.33.0", peaked(), patched=True, feature=source)
    change(case)
    before = seen(case.logits), torch.get_rng_state().tolist(), len(case.world.launches)
    found = case.feature.verify_greedily(case.sampler, case.metadata, case.logits, case.asked)
    assert found is None
    after = seen(case.logits), torch.get_rng_state().tolist(), len(case.world.launches)
    assert before == after


@pytest.mark.parametrize("release", CHANGED)
@settings(max_examples=80, deadline=None)
@given(batch=batches())
def test_a_plain_batch_is_verified_as_upstream_does(release: str, batch: Batch) -> None:
    check_short(release, batch, lambda case: None)


def test_every_release_is_one_that_was_tried() -> None:
    """The rejection sampler, and of the sampler what a greedy token goes through."""
    tried = {code(release) for release in CHANGED}
    assert len(tried) == len(CHANGED)
    assert [str(r) for r in KNOWN_RELEASES if code(str(r)) not in tried] == []


@pytest.mark.parametrize(("release", "change"), SCENARIOS)
def test_a_batch_that_is_not_plain_is_left_to_upstream(release: str, change: Change) -> None:
    check_long(release, change)


@pytest.mark.parametrize("change", [*NOT_PLAIN, *LEFT])
def test_what_is_left_to_upstream_was_not_touched(change: Change) -> None:
    check_left(change)


@pytest.mark.parametrize("change", PLAIN)
@pytest.mark.parametrize("release", CHANGED)
def test_what_is_there_and_idle_leaves_a_batch_plain(release: str, change: Change) -> None:
    if Version(release) >= Version(PLAIN[change]):
        check_short(release, peaked(), change)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert feature.wanted({})
    assert feature.wanted({feature.VARIABLE: "on"})
    assert not feature.wanted({feature.VARIABLE: "off"})
    assert feature.wanted({feature.VARIABLE: ""})
    for value in ("On", "1", "no"):
        with pytest.raises(ValueError, match=f"OVERLAY_GREEDY_VERIFICATION is '{value}'"):
            feature.wanted({feature.VARIABLE: value})
    for value, samples in (("on", True), ("off", False)):
        monkeypatch.setenv(feature.VARIABLE, value)
        case = make("0.33.0", peaked(), patched=True)
        found = case.feature.verify_greedily(case.sampler, case.metadata, case.logits, case.asked)
        assert (found is not None) is samples
    assert outcome(case) == outcome(make("0.33.0", peaked(), patched=False))


@pytest.mark.parametrize("release", CHANGED)
def test_another_value_of_the_switch_stops_the_start(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(feature.VARIABLE, "maybe")
    with pytest.raises(ValueError, match="'maybe'; set it to on or off"):
        make(release, peaked(), patched=True)


@st.composite
def matrices(draw: st.DrawFn) -> Any:
    rows, size = draw(st.integers(1, 5)), draw(st.sampled_from([*SIZES, 7, 40, 64]))
    row = st.lists(VALUES, min_size=size, max_size=size)
    return torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=draw(TYPES))


def as_shipped(file: Path) -> Any:
    """A module that splits an argmax, with its own bounds of where that pays."""
    spec = importlib.util.spec_from_file_location(f"shipped_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {module.__name__: module}):  # as a data class wants it
        spec.loader.exec_module(module)
    return module


sister = as_shipped(SISTER)


@given(logits=matrices())
@mock.patch.multiple(sister, **SPLIT_ALWAYS)
def test_the_first_largest_is_the_argmax(logits: Any) -> None:
    found = feature.first_largest(logits)
    assert found.dtype == torch.int64
    assert found.tolist() == logits.argmax(dim=-1).tolist()
    assert found.tolist() == sister.first_largest(logits).tolist()


@given(logits=matrices())
def test_float32_has_the_same_argmax(logits: Any) -> None:
    assert feature.first_largest(logits).tolist() == logits.float().argmax(dim=-1).tolist()


class Noting:
    """Stands for logits of any size, and notes into how many parts a row is split."""

    def __init__(self, rows: int, size: int) -> None:
        self.shape, self.parts = (rows, size), 1

    def argmax(self, dim: int) -> None:
        assert dim == -1

    def reshape(self, rows: int, parts: int, size: int) -> Any:
        assert (rows, parts * size) == self.shape
        self.parts = parts
        return torch.zeros(rows, parts, 1)


@given(rows=st.integers(0, 600), size=st.integers(1, 300_000))
def test_there_are_not_too_many_parts(rows: int, size: int) -> None:
    logits = Noting(rows, size)
    if rows > 0:
        feature.first_largest(logits)
        assert logits.parts == 1 or rows * logits.parts <= 512


@pytest.mark.parametrize(
    ("rows", "size", "parts"),
    [(4, 128256, 128), (8, 129280, 64), (9, 128256, 1), (4, 151936, 1), (4, 32000, 1)],
)
@pytest.mark.parametrize("file", [FILE, SISTER], ids=["verification", "draft"])
def test_it_is_split_where_that_pays(file: Path, rows: int, size: int, parts: int) -> None:
    logits = Noting(rows, size)
    as_shipped(file).first_largest(logits)
    assert logits.parts == parts


def test_the_argmax_is_known_along_one_dimension() -> None:
    tokens = torch.tensor([3, 1])
    known = feature.KnownArgmax(tokens, 8)
    assert known.argmax(dim=-1) is tokens
    assert (known.shape, known.ndim, known.device) == ((2, 8), 2, tokens.device)
    for dim in (0, 1, None):
        with pytest.raises(ValueError, match="along the last dimension only"):
            known.argmax(dim=dim)


#: What stands there, what a mistake would make of it.
MUTATIONS = [
    (" or not sampler.verifies_greedily", ""),
    ("asked.all_greedy\n        and ", ""),
    ("and asked.max_num_logprobs is None", ""),
    ("and not asked.logprob_token_ids", ""),
    ("and asked.no_penalties", ""),
    ("and asked.allowed_token_ids_mask is None", ""),
    ("and not asked.bad_words_token_ids", ""),
    ("all(_is_idle(processor)", "any(_is_idle(processor)"),
    ("and (budget is None or not budget.has_tracked_requests())", ""),
    ("(budget is None or not budget.has_tracked_requests())", "(budget is None)"),
    ('and getattr(sampler, "fly_window_size", None) is None', ""),
    ('and _is_upstreams(sampler, "RejectionSampler")', ""),
    ('and _is_upstreams(sampler.sampler, "Sampler")', ""),
    ('kind.__module__ != "vllm.v1.sample.logits_processor.builtin"', "False"),
    ("requests is not None and", "requests is None or"),
    ("and not getattr(processor, requests)", ""),
    ('"LogitBiasLogitsProcessor": "biases", ', ""),
    ('"MinTokensLogitsProcessor": "min_toks"', ""),
    ("kind.__name__ == name and ", ""),
    (' and kind.__module__.startswith("vllm.v1.sample.")', ""),
    ("index_select(0, metadata.bonus_logits_indices)", "index_select(0, metadata.logits_indices)"),
    ("metadata.bonus_logits_indices", "metadata.bonus_logits_indices - 1"),
    ("(0, metadata.target_logits_indices)", "(0, metadata.target_logits_indices + 1)"),
    (".to(torch.int32)", ""),
    ("target = tokens.", "target = tokens.int()."),
    ("KnownArgmax(target, logits.shape[-1])", "KnownArgmax(target, logits.shape[0])"),
    ("bonus.unsqueeze(-1)", "bonus.unsqueeze(0)"),
    ("        metadata.max_spec_len,", "        metadata.max_spec_len + 1,"),
    ("metadata.cu_num_draft_tokens", "metadata.cu_num_sampled_tokens"),
    ("synthetic_mode=sampler.synthetic_mode", "synthetic_mode=False"),
    ("synthetic_conditional_rates=sampler.synthetic_conditional_rates", "**{}"),
    ("part, alpha=size // parts", "part, alpha=parts"),
    ("torch.add(place", "torch.sub(place"),
    ("largest.argmax(dim=-1, keepdim=True)", "largest.argmin(dim=-1, keepdim=True)"),
    ("place.gather(-1, part)", "place[:, :1]"),
    ("logits.reshape(rows, parts, size // parts)", "logits.nan_to_num().view(-1, parts, 1)"),
]


def check_laws(source: str) -> None:
    """All of the above, of another text of the feature's module."""

    @settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate])
    @given(batch=batches())
    @seed(1)
    def law(batch: Batch) -> None:
        check_short("0.33.0", batch, lambda case: None, source)

    for change in PLAIN:
        check_short("0.33.0", peaked(), change, source)
    for change in NOT_PLAIN:
        check_long("0.33.0", change, source)
    for change in LEFT:
        check_left(change, source)
    law()


@pytest.mark.parametrize(("old", "new"), MUTATIONS)
def test_each_mistake_is_noticed(old: str, new: str) -> None:
    source = FILE.read_text()
    assert source.count(old) == 1
    # A mistake may as well end in an error of PyTorch or of the kernel.
    with pytest.raises((AssertionError, AttributeError, IndexError, RuntimeError, TypeError)):
        check_laws(source.replace(old, new))


def test_where_there_is_no_mistake_none_is_noticed() -> None:
    check_laws(FILE.read_text() + "# read anew\n")
