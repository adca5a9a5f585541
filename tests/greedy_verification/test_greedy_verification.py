"""Greedy verification: what it samples is what upstream's own `RejectionSampler` samples."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay.package import KNOWN_RELEASES

torch: Any = pytest.importorskip("torch")  # in the environment of the engine

from tests.support.code_edits import Edit
from tests.support.rejection_batches import (
    SIZES,
    TYPES,
    Batch,
    batches,
    logits_of,
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
from tests.support.sampling_worlds import EFFECTS, FEATURE, SPLIT, code, world
from tests.support.triton_by_hand import seen

pytestmark = pytest.mark.network

PATCHES = Path(__file__).resolve().parents[2] / "patches"
FILE = PATCHES / "greedy-verification/files" / f"{FEATURE.replace('.', '/')}.py"
CHANGED = (
    *("0.20.0", "0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0"),
    *("0.26.0", "0.27.0", "0.30.0", "0.32.0", "0.33.0"),
)


def scenarios() -> Iterator[Any]:
    """What makes a batch not plain in the first and the last release that has it, and in another.

    Which one that is goes round, so that each release has some; ``--thorough`` has all of them in
    all. The feature asks the same in each release, whose own text the laws are tried with.
    """
    for number, (change, first) in enumerate(NOT_PLAIN.items()):
        releases = [each for each in CHANGED if Version(each) >= Version(first)]
        tried = (releases[0], releases[-1], releases[number % len(releases)])
        for release in releases:
            marks = () if release in tried else pytest.mark.thorough
            yield pytest.param(release, change, id=f"{release}-{change.__name__}", marks=marks)


feature = world("0.33.0", True).module(FEATURE)
split = world("0.33.0", True).module(SPLIT)


def must_not_run(*_: Any, **__: Any) -> None:
    raise AssertionError("a plain batch came to upstream's own sampling")


def check_short(release: str, batch: Batch, change: Change, bug: Edit | None = None) -> None:
    """A plain batch goes the short way, to the same end."""
    upstream = make(release, batch, patched=False)
    ours = make(release, batch, patched=True, bug=bug)
    change(upstream)
    change(ours)
    ours.sampler.sampler.forward = must_not_run
    assert outcome(ours) == outcome(upstream)


def check_long(release: str, change: Change, bug: Edit | None = None) -> None:
    """A batch that is not plain ends as upstream ends it, which is not as a plain one ends."""
    upstream = make(release, peaked(), patched=False)
    ours = make(release, peaked(), patched=True, bug=bug)
    as_plain = outcome(upstream)
    change(upstream)
    change(ours)
    expected = outcome(upstream)
    assert [expected[name] != as_plain[name] for name in ("tokens", "logprobs")] != [False, False]
    assert outcome(ours) == expected


def check_left(change: Change, bug: Edit | None = None) -> None:
    """The feature says of a batch that it is not its own, and leaves everything as it was."""
    case = make("0.33.0", peaked(), patched=True, bug=bug)
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


@pytest.mark.parametrize(("release", "change"), scenarios())
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
    monkeypatch.setenv(feature.VARIABLE, "On")
    with pytest.raises(ValueError, match="OVERLAY_GREEDY_VERIFICATION is 'On'"):
        feature.switched_on()
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
    return draw(logits_of(rows, size)).to(draw(TYPES))


def as_shipped() -> Any:
    """The module that splits an argmax, with its own bounds of where that pays."""
    path = PATCHES / "shared/files" / f"{SPLIT.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location("shipped_split_argmax", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(logits=matrices())
def test_the_first_largest_is_the_argmax(logits: Any) -> None:
    found = split.first_largest(logits)
    assert found.dtype == torch.int64
    assert found.tolist() == logits.argmax(dim=-1).tolist()


@given(logits=matrices())
def test_float32_has_the_same_argmax(logits: Any) -> None:
    assert split.first_largest(logits).tolist() == logits.float().argmax(dim=-1).tolist()


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
        split.first_largest(logits)
        assert logits.parts == 1 or rows * logits.parts <= 512


@pytest.mark.parametrize(
    ("rows", "size", "parts"),
    [(4, 128256, 128), (8, 129280, 64), (9, 128256, 1), (4, 151936, 1), (4, 32000, 1)],
)
def test_it_is_split_where_that_pays(rows: int, size: int, parts: int) -> None:
    logits = Noting(rows, size)
    as_shipped().first_largest(logits)
    assert logits.parts == parts


def test_the_argmax_is_known_along_one_dimension() -> None:
    tokens = torch.tensor([3, 1])
    known = feature.KnownArgmax(tokens, 8)
    assert known.argmax(dim=-1) is tokens
    assert (known.shape, known.ndim, known.device) == ((2, 8), 2, tokens.device)
    for dim in (0, 1, None):
        with pytest.raises(ValueError, match="along the last dimension only"):
            known.argmax(dim=dim)


V, S = f"{FEATURE.replace('.', '/')}.py", f"{SPLIT.replace('.', '/')}.py"
IDLE = "_IDLE_WHILE_EMPTY"
#: Mistakes: file, function, the code there, what a mistake would make of it.
MUTATIONS: list[Edit] = [
    (V, "verify_greedily", "not sampler.verifies_greedily", "False"),
    (V, "is_plain", "asked.all_greedy", "True"),
    (V, "is_plain", "asked.max_num_logprobs is None", "True"),
    (V, "is_plain", "not asked.logprob_token_ids", "True"),
    (V, "is_plain", "asked.no_penalties", "True"),
    (V, "is_plain", "asked.allowed_token_ids_mask is None", "True"),
    (V, "is_plain", "not asked.bad_words_token_ids", "True"),
    (V, "is_plain", "all(...)", "any(_is_idle(p) for p in asked.logitsprocs.non_argmax_invariant)"),
    (V, "is_plain", "budget is None or not budget.has_tracked_requests()", "True"),
    (V, "is_plain", "budget is None or not budget.has_tracked_requests()", "budget is None"),
    (V, "is_plain", "getattr(sampler, 'fly_window_size', None) is None", "True"),
    (V, "is_plain", "is_upstreams(sampler, 'vllm.v1.sample.', 'RejectionSampler')", "True"),
    (V, "is_plain", "is_upstreams(sampler.sampler, 'vllm.v1.sample.', 'Sampler')", "True"),
    (V, "_is_idle", "kind.__module__ != ...", "False"),
    (
        V,
        "_is_idle",
        "requests is not None and ...",
        "requests is None or not getattr(processor, requests)",
    ),
    (V, "_is_idle", "not getattr(processor, requests)", "True"),
    (V, "<module>", f"{IDLE} = ...", f"{IDLE} = {{'MinTokensLogitsProcessor': 'min_toks'}}"),
    (V, "<module>", f"{IDLE} = ...", f"{IDLE} = {{'LogitBiasLogitsProcessor': 'biases'}}"),
    (V, "is_upstreams", "kind.__name__ == name", "True"),
    (V, "is_upstreams", "kind.__module__.startswith(...)", "True"),
    (V, "verify_greedily", "metadata.bonus_logits_indices", "metadata.logits_indices"),
    (V, "verify_greedily", "metadata.bonus_logits_indices", "MATCH - 1"),
    (V, "verify_greedily", "metadata.target_logits_indices", "MATCH + 1"),
    (
        V,
        "verify_greedily",
        "tokens.index_select(0, metadata.bonus_logits_indices).to(torch.int32)",
        "tokens.index_select(0, metadata.bonus_logits_indices)",
    ),
    (V, "verify_greedily", "tokens.index_select(0, metadata.target_logits_indices)", "MATCH.int()"),
    (V, "verify_greedily", "KnownArgmax(...)", "KnownArgmax(target, logits.shape[0])"),
    (V, "verify_greedily", "bonus.unsqueeze(-1)", "bonus.unsqueeze(0)"),
    (V, "verify_greedily", "metadata.max_spec_len", "metadata.max_spec_len + 1"),
    (V, "verify_greedily", "metadata.cu_num_draft_tokens", "metadata.cu_num_sampled_tokens"),
    (V, "verify_greedily", "synthetic_mode=...", "synthetic_mode=False"),
    (V, "verify_greedily", "synthetic_conditional_rates=...", "synthetic_conditional_rates=None"),
    (S, "first_largest", "alpha=...", "alpha=parts"),
    (
        S,
        "first_largest",
        "torch.add(...)",
        "torch.sub(place.gather(-1, part), part, alpha=size // parts)",
    ),
    (S, "first_largest", "largest.argmax(...)", "largest.argmin(dim=-1, keepdim=True)"),
    (S, "first_largest", "place.gather(-1, part)", "place[:, :1]"),
    (S, "first_largest", "logits.reshape(...)", "logits.nan_to_num().view(-1, parts, 1)"),
]


def check_laws(bug: Edit) -> None:
    """All of the above, of the feature with an edit."""

    @settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate])
    @given(batch=batches())
    @seed(1)
    def law(batch: Batch) -> None:
        check_short("0.33.0", batch, lambda case: None, bug)

    for change in PLAIN:
        check_short("0.33.0", peaked(), change, bug)
    for change in NOT_PLAIN:
        check_long("0.33.0", change, bug)
    for change in LEFT:
        check_left(change, bug)
    law()


@pytest.mark.parametrize("bug", MUTATIONS, ids=lambda bug: f"{bug[1]}: {bug[2]} -> {bug[3]}")
def test_each_mistake_is_noticed(bug: Edit) -> None:
    # A mistake may as well end in an error of PyTorch or of the kernel.
    with pytest.raises((AssertionError, AttributeError, IndexError, RuntimeError, TypeError)):
        check_laws(bug)


def test_where_there_is_no_mistake_none_is_noticed() -> None:
    check_laws((V, "verify_greedily", "...", "MATCH"))


def test_what_it_does_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make("0.33.0", peaked(), patched=True)
    effects = case.world.module(EFFECTS).effects
    assert effects()["greedy-verification"]["state"] == "active"
    before = dict(effects()["greedy-verification"]["counts"])
    outcome(case)
    after = effects()["greedy-verification"]["counts"]
    verified, left = "batches verified from one argmax", "batches left to upstream"
    assert after[verified] == before.get(verified, 0) + 1
    check_left(next(iter(LEFT)))
    assert effects()["greedy-verification"]["counts"][left] == after.get(left, 0) + 1
    monkeypatch.setenv(feature.VARIABLE, "off")
    make("0.33.0", peaked(), patched=True)
    told = effects()["greedy-verification"]
    assert (told["state"], told["text"]) == ("idle", "OVERLAY_GREEDY_VERIFICATION=off")
