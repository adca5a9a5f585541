# ruff: noqa: E501 - lines of code are quoted whole
"""The bugs that the proof must catch: each a small change of the module, and what catches it.

A mutation that nothing catches means that the proof is too weak, or that the code it changes is
not needed. `docs/mutations.md` is this table, written out by `render`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dp_mutations import DP_MUTATIONS
from mutation_table import MUTATIONS


@dataclass(frozen=True)
class PolicyMutation:
    """A reason to refuse that the policy forgets; `test_policy.REFUSED` has what it must refuse."""

    fact: str
    stands_for: str
    old: str
    new: str


def _forgets(fact: str, stands_for: str) -> PolicyMutation:
    return PolicyMutation(fact, stands_for, f"(facts.{fact}, ", "(False, ")


POLICY_MUTATIONS = (
    PolicyMutation("data_parallel", "defect 9", "if facts.data_parallel is not None:", "if False:"),
    _forgets("extra_input_slots", "hazard 7"),
    _forgets("parallel_drafting", "hazard 7"),
    PolicyMutation("is_eagle_proposer", "hazard 8", "if not facts.is_eagle_proposer:", "if False:"),
    PolicyMutation(
        "overridden_methods", "hazard 8", "elif facts.overridden_methods:", "elif False:"
    ),
    _forgets("padded_batch_disabled", "hazard 9"),
    _forgets("shared_mtp_indices", "hazard 11"),
    _forgets("eplb", "hazard 12"),
    _forgets("heterogeneous_vocab", "policy"),
    _forgets("micro_batching", "policy"),
    _forgets("lora", "policy"),
    _forgets("sequence_parallel", "policy"),
    _forgets("enforce_eager", "policy"),
)

#: Rows that no mutation here stands for, and why.
OTHERWISE = {
    "hazard 13": "dynamic K: `test_policy.py` and `test_keys.py`; under it vLLM takes FULL away from the target",
    "hazard 14": "nothing to mutate: `dummy_run` of the proposer reaches no draft graph; `test_data_parallel.py` runs it on idle ranks and beside live requests",
    "hazard 15": "the sabotages: the address check must name each tensor that is replaced after the capture",
}
#: What CPU cannot show. These are looked at on a GPU.
GPU_ONLY = {
    "no warm-up before a capture": "Triton tunes and cuBLAS makes its workspace inside the capture",
    "a copy to or from the host is missing, or races": "one buffer is both on CPU",
    "the result is read on another stream while the next replay writes it": "there is one stream on CPU; here only that the result is not the graphs' memory",
    "two tensors of a graph share memory, or draft and target graphs share a pool": "the double gives every tensor its own; of a neighbour in a pool it spoils what nobody holds",
    "the largest graph is not captured first": "memory only",
    "the largest number of splits of FlashAttention": "its metadata is made by its own builder",
}

PAGE_TOP = """# Mutations

Each line is a bug that was put into the draft graphs' module, and what showed it, in a real engine
on CPU with the graph double (`tests/draft_graphs/`). A mutation that nothing shows fails
`tests/draft_graphs/test_mutations.py`, or `test_data_parallel.py` where there are two ranks. This
page is written by `mutations.py` beside them.

"Defect" counts the defects of the closed upstream change that this feature follows, "hazard" the
places where a captured drafter would read stale memory or bake a number of the host; the other
words say which part of the module it is about. What shows it:

- *acceptance*: tokens, or how often each draft position was accepted, differ from the oracle;
- *audit*: a call wrote KV slots of others or tensors of the runner, returned memory of a graph,
  or attention was asked for what would be out of bounds;
- *address check*: the module's own debug mode named the tensor;
- *graph double*: the capture or the replay was refused, as a GPU would have to;
- *lockstep*: one of two ranks failed, or waited in vain for the other;
- *error*: serving failed; *use*: graphs were used for what they must not be;
- *policy*: the policy's own test, without an engine.

| stands for | mutation | shown by |
|---|---|---|
"""


def _rows() -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = [
        (each.stands_for, each.name, each.catcher) for each in MUTATIONS
    ]
    rows += [(each.stands_for, f"{each.name} (two ranks)", each.catcher) for each in DP_MUTATIONS]
    rows += [
        (each.stands_for, f"the policy forgets `{each.fact}`", "policy")
        for each in POLICY_MUTATIONS
    ]
    rows += [(row, "(none)", why) for row, why in OTHERWISE.items()]
    return sorted(rows, key=_order)


def _order(row: tuple[str, str, str]) -> tuple[str, int]:
    kind, _, number = row[0].partition(" ")
    return (kind if number else f"~{kind}", int(number or 0))


def render() -> str:
    """The page `docs/mutations.md`."""
    lines = [f"| {stands_for} | {name} | {shown} |" for stands_for, name, shown in _rows()]
    gpu = [f"| {what} | {why} |" for what, why in GPU_ONLY.items()]
    return (
        PAGE_TOP
        + "\n".join(lines)
        + "\n\n## Only a GPU can show\n\n| bug | why CPU cannot |\n|---|---|\n"
        + "\n".join(gpu)
        + "\n"
    )


if __name__ == "__main__":
    page = Path(__file__).parents[2] / "docs" / "mutations.md"
    page.write_text(render(), encoding="utf-8")
