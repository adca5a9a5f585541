# ruff: noqa: E501 - lines of code are quoted whole
"""The bugs that the proof must catch: each a small change of the module, and what catches it.

A mutation that nothing catches means that the proof is too weak, or that the code it changes is
not needed. `docs/appendix/mutations.md` is this table, written out by `render`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overlay.untrusted import parse_toml
from tests.ascend.mutations import ASCEND_MUTATIONS
from tests.draft_graphs.capability_mutations import CAPABILITY_MUTATIONS
from tests.draft_graphs.dp_mutations import DP_MUTATIONS
from tests.draft_graphs.mutation_table import MUTATIONS
from tests.draft_graphs.reads_mutations import CONNECTOR_MUTATIONS, READS_MUTATIONS
from tests.draft_graphs.scenario_mutations import BUILDER_MUTATIONS, SCENARIO_MUTATIONS
from tests.draft_graphs.settings_mutations import MICRO_BATCH_MUTATIONS, SETTINGS_MUTATIONS
from tests.draft_graphs.together_mutations import NOT_SHOWN, TOGETHER_MUTATIONS
from tests.draft_graphs.twin_mutations import TWIN_MUTATIONS
from tests.gpu.mutation_plan import ALSO


@dataclass(frozen=True)
class PolicyMutation:
    """A reason to refuse that the policy forgets; `test_policy.REFUSED` has what it must refuse."""

    fact: str
    stands_for: str
    scope: str
    old: str
    new: str = "False"


def _forgets(fact: str, stands_for: str) -> PolicyMutation:
    return PolicyMutation(fact, stands_for, "_yes_no_refusals", f"facts.{fact}")


POLICY_MUTATIONS = (
    PolicyMutation("coupling", "defect 9", "refusals", "facts.coupling.manner is Manner.REFUSED"),
    PolicyMutation(
        "unseen_group",
        "hazard 7",
        "_late_refusals",
        "if facts.unseen_group is not None:\n    ...",
        "pass",
    ),
    PolicyMutation(
        "proposer_class",
        "hazard 8",
        "refusals",
        "facts.proposer_class not in DRAFTERS",
    ),
    PolicyMutation(
        "overridden_methods",
        "hazard 8",
        "refusals",
        "if facts.proposer_class not in DRAFTERS:\n    ...\n"
        "elif facts.overridden_methods:\n    ...",
        "if facts.proposer_class not in DRAFTERS:\n    reasons.append('another class')",
    ),
    _forgets("padded_batch_disabled", "hazard 9"),
    _forgets("shared_mtp_indices", "hazard 11"),
    PolicyMutation(
        "adapted_layers", "policy", "refusals", "if facts.adapted_layers:\n    ...", "pass"
    ),
    PolicyMutation(
        "attention",
        "policy",
        "_late_refusals",
        "if facts.attention is not None:\n    ...",
        "pass",
    ),
    PolicyMutation(
        "cudagraph_mode", "policy", "_late_refusals", "facts.cudagraph_mode == NO_CAPTURE"
    ),
    PolicyMutation(
        "per_layer_connectors",
        "connectors",
        "_late_refusals",
        "if facts.per_layer_connectors:\n    ...",
        "pass",
    ),
    _forgets("sequence_parallel", "policy"),
    _forgets("enforce_eager", "policy"),
)


@dataclass(frozen=True)
class OnGpu:
    """A bug that CPU cannot show.

    :ivar why: it cannot.
    :ivar right: where on a GPU the module as it is does right what the bug would do wrong.
    :ivar bug: where on a GPU the bug itself was put in, and what showed it.
    """

    why: str
    right: str
    bug: str = "nowhere"


def _put_in(name: str, engines: str, shown: str) -> str:
    """A mutation of `tests/gpu/mutation_plan.py`, where it was put in, and what showed it."""
    return f'"{name}" in {engines}: {shown}'


_CELLS = "`tests/gpu/acceptance.py`"
GPU_ONLY = {
    "a copy to or from the host is missing, or races": OnGpu(
        "one buffer is both on CPU; but the module makes no such copy while it serves, and waits for no value: `test_host_copies.py` proves that on CPU, with all that a device holds on PyTorch's `meta` device, so that such a copy has to be put in first",
        f"{_CELLS}, cells `soak`: 93,752 replays with the address check on, drafts as the oracle's (`h200-acceptance-0.26.0-2026-11-21-b.json`)",
        _put_in(
            "the lengths go through the host, which does not wait for them",
            "`host`, where every operator is looked at, in the module as it is, too",
            "the copies, by name, and 535 tokens accepted of 2,150 drafted, where 750 of 1,140 are right",
        ),
    ),
    "the result is read on another stream while the next replay writes it": OnGpu(
        "there is one stream on CPU; here only that the result is not the graphs' memory. By vLLM 0.26.0's sources each of its own readers has read before the next replay: `_sample` and `take_draft_token_ids` wait for the copy to the host, and `_prepare_input_ids` reads on the stream that drafts",
        "`late-reader` of `tests/gpu/gpu_mutations.py`: of 20 results that the test reads late none has changed",
        _put_in(
            "the result is not a copy",
            "`late-reader`, where the test reads on a stream that sleeps, and `late-copies`, where vLLM's own copy sleeps, which nobody should notice",
            "16 of 20 results that the test read late had changed; vLLM's own copy came in time",
        ),
    ),
    "two tensors of a graph share memory": OnGpu(
        "the double gives every tensor its own",
        f"{_CELLS}: drafts as the oracle's, or as without graphs (73 of 73 cells: `h200-acceptance-0.32.0-2026-11-21-b.json`)",
        _put_in(
            "hidden states are handed on in memory that the pool has back",
            "`hid-k5` (`loop`)",
            "fewer tokens accepted than the oracle",
        ),
    ),
    "draft and target graphs share a pool": OnGpu(
        "of a neighbour in a pool the double spoils what nobody holds",
        f"{_CELLS}, cells `sampled-and-logprobs-full` and `-full_decode_only`, `step` and `loop`: prompt logprobs, made from what the target left in its pool, are the oracle's (on all four releases, such as `h200-acceptance-0.26.0-2026-11-21-c.json` and `h200-acceptance-0.32.0-2026-11-22.json`); in FULL_AND_PIECEWISE upstream's own first pass overwrites it before, with and without the overlay",
        _put_in(
            "draft and target graphs share a pool",
            "`prompts-full` and `prompts-decode`, whose prompts have K+1 tokens, because in FULL_DECODE_ONLY others are in no graph (`loop`, `step`)",
            "wrong prompt logprobs of 1 and 6 requests of 24, in each mode",
        ),
    ),
    "the largest graph is not captured first": OnGpu(
        "only memory tells; the order itself is in `test_keys.py`",
        f"{_CELLS}, cells `profiled-memory`: engines that measure their memory start and serve, which bounds it from above only (`h200-acceptance-0.26.0-2026-11-20.json`, `h200-acceptance-0.32.0-2026-11-21-b.json`)",
        _put_in(
            "the smallest graph is captured first",
            "`seqs256`, by the bytes that PyTorch's allocator keeps in the graphs' pool",
            "108 MiB where 56 MiB are enough",
        ),
    ),
    "the largest number of splits of FlashAttention": OnGpu(
        "its metadata is made by its own builder. By reading no wrong number can be put in: a number of splits is host arithmetic on numbers that are the same at every replay, and any number gives the same attention; what can be wrong is a schedule from before the capture",
        f"{_CELLS}: FlashAttention 3 in all cells but `triton`, 256 requests (`seqs256`) and prompts of up to 400 tokens (`long-prompts`) among them; that a batch took as many splits as it may is not known",
        _put_in(
            "FlashAttention chooses its number of splits at the capture",
            "`long`",
            "nothing, as by reading it should be",
        )
        + "; "
        + _put_in(
            "FlashAttention's schedule is made once, before the capture",
            "`long`",
            "70 tokens accepted of 2,058 drafted, where 531 of 723 are right",
        ),
    ),
}

PAGE_TOP = """<!-- Written by tests/draft_graphs/mutations.py; a test compares. -->

# Mutations

Each line is a bug that was put into the draft graphs' module, and what showed it, in a real engine
on CPU with the graph double (`tests/draft_graphs/`). A mutation that nothing shows fails
`tests/draft_graphs/test_mutations.py`, `test_data_parallel.py` where there are two ranks,
`test_engine_graphs.py` where it is about adapters or KV-cache groups, `test_builders.py`, or
`test_same_as_upstream.py` where it is a twin that shows it. Those of "Ascend" are bugs of the feature
`ascend-draft-lengths`, or of how vllm-ascend's graphs are updated, and `tests/ascend/test_twin.py` must
show them. A bug is an edit of the syntax of a named
function (`tests/support/code_edits.py`), so that layout and comments do not count. This page is
written by `mutations.py` beside them.

"Defect" counts the defects of the closed upstream change that this feature follows, "hazard" the
places where a captured drafter would read stale memory or bake a number of the host; the other
words say which part of the module it is about. What shows it:

- *acceptance*: tokens, or how often each draft position was accepted, differ from the oracle;
- *audit*: a call wrote KV slots of others or tensors of the runner, returned memory of a graph,
  or attention was asked for what would be out of bounds;
- *address check*: the module's own debug mode named the tensor;
- *graph double*: the capture or the replay was refused, as a GPU would have to;
- *lockstep*: one of two ranks waited in vain for the other, or took the other's question for its
  own; the test demands of both ranks in which function, and of what, each failed;
- *sabotage*: a tensor was replaced after the capture and the address check, which names it in the
  module as it is, said nothing;
- *together*: ranks in one process, whose agreements the test makes, part or go on where they must
  not (`test_together.py`; "many GPUs" counts what parts ranks that draft together);
- *twin*: drafts or KV cache differ from those of upstream's code on random batches;
- *error*: serving failed; *use*: graphs were used for what they must not be;
- *settings*: ranks that differ started, or one waited for another without end
  (`tests/draft_graphs/test_same_settings.py`);
- *outputs*: what micro-batches get or return is not theirs (`tests/dbo`);
- *policy*, *builders*, *reads*, *connectors*: the test of the policy, of the metadata builders, of
  where reads lie (`test_reads.py`), or of KV connectors (`test_connectors.py`), without an engine.

| stands for | mutation | shown by |
|---|---|---|
"""

GPU_TOP = """
## Only a GPU can show

`tests/gpu/gpu_mutations.py` puts bugs into the module while vLLM imports it. On an H200, with vLLM
0.26.0 (`bench/results/h200-gpu-mutations-0.26.0-2026-11-22.json`), its engines were right as they
are, 14 of 14, and noticed what the last column says, and of {also} bugs of the table above all {must}
that they must notice. Of the other four two were noticed; padded rows that sample elsewhere and a
missing warm-up were not. The third column says where the module as it is was seen to do right what
the bug would do wrong.

| bug | why CPU cannot show it | where the module is right on a GPU | where the bug was put in, and what showed it |
|---|---|---|---|"""


ANSWERS_TOP = """
## Defects and hazards, and where they are answered

| what may go wrong | answer in `vllm.v1.spec_decode.draft_graphs` |
|---|---|"""
ANSWERS = Path(__file__).with_name("hazards.toml")


NOT_SHOWN_TOP = """
## No machine of the project can show

| stands for | what |
|---|---|"""


def _rows() -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = [
        (each.stands_for, each.name, each.catcher) for each in (*MUTATIONS, *SCENARIO_MUTATIONS)
    ]
    rows += [
        (
            each.stands_for,
            f"{each.name} (two ranks)",
            each.catcher,
        )
        for each in DP_MUTATIONS
    ]
    rows += [(each.stands_for, each.name, "together") for each in TOGETHER_MUTATIONS]
    rows += [(each.stands_for, each.name, "twin") for each in TWIN_MUTATIONS]
    rows += [(each.stands_for, each.name, "builders") for each in BUILDER_MUTATIONS]
    rows += [(each.stands_for, each.name, "reads") for each in READS_MUTATIONS]
    rows += [(each.stands_for, each.name, "connectors") for each in CONNECTOR_MUTATIONS]
    rows += [(each.stands_for, each.name, each.catcher) for each in ASCEND_MUTATIONS]
    rows += [("ranks", each.name, "settings") for each in SETTINGS_MUTATIONS]
    rows += [("micro-batching", *each) for each in MICRO_BATCH_MUTATIONS]
    rows += [(each.stands_for, each.name, "policy") for each in CAPABILITY_MUTATIONS]
    rows += [
        (each.stands_for, f"the policy forgets `{each.fact}`", "policy")
        for each in POLICY_MUTATIONS
    ]
    return sorted(rows, key=_order)


def _order(row: tuple[str, str, str]) -> tuple[str, int]:
    kind, _, number = row[0].rpartition(" ")
    return (kind, int(number)) if number.isdigit() else (f"~{row[0]}", 0)


def render() -> str:
    """The page `docs/appendix/mutations.md`."""
    lines = [f"| {stands_for} | {name} | {shown} |" for stands_for, name, shown in _rows()]
    gpu = [
        f"| {what} | {each.why} | {each.right} | {each.bug} |" for what, each in GPU_ONLY.items()
    ]
    gpu_top = GPU_TOP.format(also=len(ALSO), must=sum(each.must for each in ALSO))
    not_shown = [f"| many GPUs {hazard} | {why} |" for hazard, why in NOT_SHOWN.items()]
    answers = [
        f"| {each['kind']} {', '.join(map(str, each['numbers']))}: {each['what']} | {each['answer']} |"
        for each in parse_toml(ANSWERS.read_text(encoding="utf-8"))["answers"]
    ]
    parts = [PAGE_TOP + "\n".join(lines), ANSWERS_TOP, *answers, gpu_top, *gpu]
    return "\n".join([*parts, NOT_SHOWN_TOP, *not_shown, ""])


if __name__ == "__main__":
    page = Path(__file__).parents[2] / "docs/appendix/mutations.md"
    page.write_text(render(), encoding="utf-8")
