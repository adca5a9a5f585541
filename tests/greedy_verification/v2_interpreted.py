"""The laws of greedy verification on model runner V2, in Triton's interpreter.

    TRITON_INTERPRET=1 python -m tests.greedy_verification.v2_interpreted laws RELEASE...
    TRITON_INTERPRET=1 python -m tests.greedy_verification.v2_interpreted mistakes

The first prints of each release how many kernels upstream and the feature start; the second which
mistakes nobody noticed. A law that does not hold ends with hypothesis's example.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from packaging.version import Version

from tests.greedy_verification.v2_worlds import (
    EFFECTS,
    FEATURE,
    REJECTION,
    Batch,
    Case,
    batches,
    launches,
    methods,
    world,
)
from tests.support.code_edits import Edit, EditError

Change = Callable[[Case], Any]
#: A batch in which each condition shows.
PLAIN = Batch("standard", 3, (3, 0, 2), (-2, -2, -1), 1025, torch.bfloat16, 0, False, 5)


def _slot(case: Case) -> int:
    return int(case.drawn.slots[-1])


def random(case: Case) -> None:
    case.sampler.sampling_states.temperature.np[_slot(case)] = 0.5


def log_probabilities(case: Case) -> None:
    case.sampler.sampling_states.num_logprobs[_slot(case)] = 0


def processed(case: Case) -> None:
    case.sampler.needs_logits_processing[_slot(case)] = True


def biased(case: Case) -> None:
    case.sampler.logit_bias_state.use_logit_bias[_slot(case)] = True


def penalized(case: Case) -> None:
    case.sampler.penalties_state.use_penalty[_slot(case)] = True


def with_bad_words(case: Case) -> None:
    case.sampler.bad_words_state.num_bad_words.np[_slot(case)] = 1


def forbidden(case: Case) -> None:
    case.invalid_drafts = torch.zeros(len(case.drawn.logits), dtype=torch.bool)


def narrow(case: Case) -> None:
    case.draft_logits = case.draft_logits[..., :-1]


def adaptive(case: Case) -> None:
    case.spec_config.enable_adaptive_verification = True


def masked(case: Case) -> None:
    case.sampler.return_sampling_mask = True


def fly(case: Case) -> None:
    case.spec_config.rejection_sample_method = "fly"


def other_sampler(case: Case) -> None:
    case.sampler.__class__ = type("Other", (type(case.sampler),), {"__module__": REJECTION})


def foreign_sampler(case: Case) -> None:
    case.sampler.__class__ = type("Sampler", (type(case.sampler),), {"__module__": "their.own"})


def other_rejection(case: Case) -> None:
    case.kind = type("Other", (case.kind,), {"__module__": REJECTION})


#: Why upstream verifies a batch -> the releases that have it, and what is told of it.
LEFT: dict[Change, tuple[str, str, str]] = {
    random: ("0.20.0", "0.33.0", "requests that are not greedy"),
    log_probabilities: ("0.20.0", "0.33.0", "log probabilities"),
    processed: ("0.28.0", "0.33.0", "changes of the logits"),
    biased: ("0.20.0", "0.27.0", "changes of the logits"),
    penalized: ("0.20.0", "0.27.0", "changes of the logits"),
    with_bad_words: ("0.20.0", "0.27.0", "changes of the logits"),
    forbidden: ("0.32.0", "0.33.0", "drafts that a grammar forbids"),
    narrow: ("0.20.0", "0.33.0", "a draft of fewer tokens"),
}
#: Why upstream verifies all batches -> likewise.
ALL_LEFT: dict[Change, tuple[str, str, str]] = {
    adaptive: ("0.28.0", "0.33.0", "drafts are verified adaptively"),
    masked: ("0.32.0", "0.33.0", "the tokens that could be sampled are returned"),
    fly: ("0.33.0", "0.33.0", "drafts are accepted by the method fly"),
    other_sampler: ("0.20.0", "0.33.0", "the sampler is not vLLM's own"),
    foreign_sampler: ("0.20.0", "0.33.0", "the sampler is not vLLM's own"),
    other_rejection: ("0.20.0", "0.33.0", "the rejection sampler is not vLLM's own"),
}


@functools.cache
def expected(release: str, batch: Batch) -> tuple[dict[str, Any], int]:
    """What upstream answers, and how many kernels it starts."""
    return Case(world(release, patched=False), batch).verify(), len(launches)


def check_plain(release: str, batch: Batch, bug: Edit | None = None) -> tuple[int, int]:
    """A plain batch is answered as upstream answers it: how many kernels either starts."""
    answer, before = expected(release, batch)
    assert Case(world(release, patched=True, bug=bug), batch).verify() == answer
    assert launches == ["_largest_kernel", "_verify_kernel"]
    return before, len(launches)


def _plain(release: str) -> Batch:
    values = vars(PLAIN) | {"method": methods(release)[0]}
    return Batch(**values)


def check_left(release: str, change: Change, reason: str, bug: Edit | None = None) -> None:
    """A batch that is not plain is none of the feature's, which says why and starts nothing."""
    case = Case(world(release, patched=True, bug=bug), _plain(release))
    rejection = case.kind(case.sampler, case.spec_config, torch.device("cpu"))
    change(case)
    name = f"batches with {reason} left to upstream"
    effects, arguments = case.world.module(EFFECTS).effects, (case.drawn.logits, case.input_batch)
    before = _counts(effects).get(name, 0)
    launches.clear()
    verify = case.world.module(FEATURE).verify_greedily
    assert verify(rejection, *arguments, case.draft_logits, case.invalid_drafts, None) is None
    assert launches == []
    assert _counts(effects)[name] == before + 1


def check_all_left(release: str, change: Change, reason: str, bug: Edit | None = None) -> None:
    """A rejection sampler that is not plain keeps nothing of the feature's, which is idle."""
    case = Case(world(release, patched=True, bug=bug), _plain(release))
    change(case)
    assert (
        case.world.module(FEATURE).prepare(
            case.kind.__new__(case.kind), case.sampler, case.spec_config
        )
        is None
    )
    told = case.world.module(EFFECTS).effects()["greedy-verification"]
    assert (told["state"], told["text"]) == ("idle", reason)
    given = case.drawn.logits, case.input_batch, case.draft_logits, None, None
    for kept in ({"greedy_verification": None}, {}):
        rejection = SimpleNamespace(sampler=case.sampler, **kept)
        assert case.world.module(FEATURE).verify_greedily(rejection, *given) is None


def check_counts(release: str, bug: Edit | None = None) -> None:
    """Each verified batch is counted, and its NaN are told as upstream tells them."""
    case = Case(world(release, patched=True, bug=bug), _plain(release))
    case.sampler.compute_nans = True
    effects = case.world.module(EFFECTS).effects
    before = _counts(effects).get("batches verified from one argmax", 0)
    nans = case.verify()["num_nans"]
    assert nans[1] == [0] * len(case.drawn.logits)
    assert _counts(effects)["batches verified from one argmax"] == before + 1
    assert effects()["greedy-verification"]["state"] == "active"


def _counts(effects: Callable[[], Any]) -> dict[str, int]:
    counts: dict[str, int] = effects().get("greedy-verification", {}).get("counts", {})
    return counts


def check_laws(release: str, examples: int, bug: Edit | None = None) -> tuple[int, int]:
    """All of the above, of one release: the kernels that upstream and the feature start."""
    kernels = [check_plain(release, _plain(release), bug)]
    check_counts(release, bug)
    for change, (first, last, reason) in LEFT.items():
        if Version(first) <= Version(release) <= Version(last):
            check_left(release, change, reason, bug)
    for change, (first, last, reason) in ALL_LEFT.items():
        if Version(first) <= Version(release) <= Version(last):
            check_all_left(release, change, reason, bug)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(1)
    @given(batch=batches(release))
    def law(batch: Batch) -> None:
        check_plain(release, batch, bug)

    law()
    return kernels[0]


#: Batches that a mistake is tried with.
EXAMPLES = {"0.33.0": 100}
V, V1 = f"{FEATURE.replace('.', '/')}.py", "vllm/v1/sample/greedy_verification.py"
#: Mistakes: release, file, function, the code there, what a mistake would make of it.
MISTAKES: list[tuple[str, Edit]] = [
    ("0.33.0", (V, "_reason_against", "states.temperature.np[slots].any()", "False")),
    ("0.33.0", (V, "_reason_against", "states.temperature.np[slots].any()", "MATCH or True")),
    ("0.33.0", (V, "_reason_against", "_processes(sampler, slots)", "False")),
    ("0.33.0", (V, "_reason_against", "states.max_num_logprobs(slots) >= 0", "False")),
    ("0.33.0", (V, "_reason_against", "invalid_drafts is not None", "False")),
    ("0.33.0", (V, "_reason_against", "draft_logits is not None and ...", "False")),
    ("0.33.0", (V, "_reason_against", "draft_logits is not None and ...", "draft_logits is None")),
    ("0.33.0", (V, "_processes", "bool(needs[slots].any())", "False")),
    ("0.33.0", (V, "_processes", "needs[slots].any()", "needs[slots].all()")),
    ("0.27.0", (V, "_processes", "sampler.logit_bias_state.use_logit_bias[slots].any()", "False")),
    ("0.27.0", (V, "_processes", "sampler.penalties_state.use_penalty[slots].any()", "False")),
    (
        "0.27.0",
        (V, "_processes", "sampler.bad_words_state.num_bad_words.np[slots].any()", "False"),
    ),
    (
        "0.33.0",
        (
            V,
            "_reason_against_all",
            "not is_upstreams(rejection, 'vllm.v1.worker.gpu.', 'RejectionSampler')",
            "False",
        ),
    ),
    (
        "0.33.0",
        (
            V,
            "_reason_against_all",
            "not is_upstreams(sampler, 'vllm.v1.worker.gpu.', 'Sampler')",
            "False",
        ),
    ),
    ("0.33.0", (V1, "is_upstreams", "kind.__name__ == name", "True")),
    ("0.33.0", (V1, "is_upstreams", "kind.__module__.startswith(...)", "True")),
    ("0.33.0", (V, "_reason_against_all", "method not in _BY_ARGMAX and ...", "False")),
    (
        "0.33.0",
        (
            V,
            "_reason_against_all",
            "getattr(spec_config, 'enable_adaptive_verification', False)",
            "False",
        ),
    ),
    (
        "0.33.0",
        (V, "_reason_against_all", "getattr(sampler, 'return_sampling_mask', False)", "0"),
    ),
    ("0.33.0", (V, "prepare", "synthetic=...", "synthetic=False")),
    ("0.33.0", (V, "prepare", "placeholders=...", "placeholders=False")),
    ("0.30.0", (V, "prepare", "placeholders=...", "placeholders=True")),
    ("0.33.0", (V, "prepare", "counts=...", "counts=False")),
    ("0.23.0", (V, "prepare", "counts=...", "counts=True")),
    ("0.33.0", (V, "_sample", "logits.stride(0)", "width")),
    ("0.33.0", (V, "_sample", "-(-width // _BLOCK)", "max(1, width // _BLOCK)")),
    ("0.33.0", (V, "_sample", "num_nans=num_nans", "num_nans=None")),
    ("0.33.0", (V, "_sample", "torch.empty_like(num_sampled)", "num_sampled")),
    ("0.33.0", (V, "_largest_kernel", "columns < width", "columns < width + 3")),
    ("0.33.0", (V, "_largest_kernel", "columns < width", "columns < width - 1")),
    ("0.33.0", (V, "_largest_kernel", "block * size + place", "place")),
    ("0.33.0", (V, "_argmax_of", "other=float('-inf')", "other=99.0")),
    ("0.33.0", (V, "_argmax_of", "tl.argmax(largest, axis=0)", "0")),
    ("0.33.0", (V, "_verify_kernel", "range(end - start - 1)", "range(end - start)")),
    ("0.33.0", (V, "_verify_kernel", "range(end - start - 1)", "range(end - start - 2)")),
    (
        "0.33.0",
        (
            V,
            "_verify_kernel",
            "tl.load(logits_indices_ptr + row + 1)",
            "tl.load(logits_indices_ptr + row)",
        ),
    ),
    ("0.33.0", (V, "_verify_kernel", "began < prefill_len", "began <= prefill_len")),
    ("0.33.0", (V, "_verify_kernel", "step + 1", "step")),
    (
        "0.33.0",
        (
            V,
            "_verify_kernel",
            "tl.load(positions_ptr + tl.load(logits_indices_ptr + row))",
            "MATCH + 1",
        ),
    ),
    ("0.33.0", (V, "_verify_kernel", "draft >= 0", "draft >= -1")),
    (
        "0.33.0",
        (
            V,
            "_verify_kernel",
            "drawn < tl.load(rates_ptr + step)",
            "drawn >= tl.load(rates_ptr + step)",
        ),
    ),
    ("0.33.0", (V, "_verify_kernel", "tl.load(rates_ptr + step)", "tl.load(rates_ptr)")),
    ("0.33.0", (V, "_verify_kernel", "tl.load(seeds_ptr + slot)", "tl.load(seeds_ptr + request)")),
    (
        "0.33.0",
        (
            V,
            "_verify_kernel",
            "tl.load(prefill_len_ptr + slot)",
            "tl.load(prefill_len_ptr + request)",
        ),
    ),
    (
        "0.33.0",
        (
            V,
            "_verify_kernel",
            "tl.load(seq_lens_ptr + request) < prefill_len",
            "tl.load(seq_lens_ptr + request) <= prefill_len",
        ),
    ),
    ("0.33.0", (V, "_verify_kernel", "tl.where(is_chunk, 0, num_sampled)", "num_sampled")),
    ("0.33.0", (V, "_verify_kernel", "end - start - num_sampled", "end - start - accepted")),
    (
        "0.33.0",
        (
            V,
            "_verify_kernel",
            "tl.where(is_chunk, 0, end - start - num_sampled)",
            "end - start - num_sampled",
        ),
    ),
    ("0.33.0", (V, "verify_greedily", "ours is None", "False")),
]


def main() -> None:
    """Print what the command line asks for, as JSON."""
    torch.set_num_threads(1)  # a child that was forked has no others
    if sys.argv[1] == "laws":
        examples, releases = int(sys.argv[2]), sys.argv[3:]
        print(json.dumps({release: check_laws(release, examples) for release in releases}))
        return
    for release in {release for release, _ in MISTAKES}:
        # First without a mistake: all must hold. The children have upstream's answers from here.
        check_laws(release, EXAMPLES.get(release, 15))
    endings = [_ending(release, bug) for release, bug in MISTAKES]
    unnoticed, unfit = (
        [bug[1:] for (_, bug), end in zip(MISTAKES, endings, strict=True) if end == wanted]
        for wanted in (0, 2)
    )
    print(json.dumps({"mistakes": len(MISTAKES), "unnoticed": unnoticed, "unfit": unfit}))


def _ending(release: str, bug: Edit) -> int:
    """0 where nobody noticed a mistake, 2 where it does not fit the code, else another status.

    In a child, for a kernel that reads beyond a tensor may end its process.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a loop may have lost its end
        status = 1
        try:
            check_laws(release, EXAMPLES.get(release, 15), bug)
            status = 0
        except EditError:
            status = 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main()
