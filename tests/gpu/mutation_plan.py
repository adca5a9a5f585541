"""Which bugs of the draft graphs are put in on a GPU, and which engines should notice each.  Pure.

The bugs are of two kinds: those of `ONLY` no CPU can show, those of `ALSO` are bugs that the tests
on CPU notice, so that what runs on a GPU is seen to notice them, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tests.draft_graphs.mutation_table import MUTATIONS
from tests.support.code_edits import Edit

#: What shows a mutation: accepted drafts or tokens differ from the oracle's; prompt logprobs do;
#: the address check stopped the engine; the engine failed otherwise; the graphs were withdrawn;
#: the pool holds more memory than the control's; an operator copied to or from the host or waited;
#: a result changed before it was read late.
Sign = Literal[
    "acceptance",
    "prompt logprobs",
    "address check",
    "error",
    "withdrawn",
    "memory",
    "host",
    "late reader",
]
Changes = tuple[Edit, ...]


@dataclass(frozen=True)
class GpuMutation:
    """One bug, and where it should be noticed.

    :ivar changes: edits of the package, as `tests.support.code_edits` makes them.
    :ivar engines: names of engines in ``mutation_engines``, each with its mode.
    :ivar signs: any of which shows it.
    :ivar must: whether it is a failure if one of its engines does not notice it.
    :ivar says: what an error or a withdrawal must say to count, a regular expression.
    """

    name: str
    changes: Changes
    engines: tuple[str, ...]
    signs: tuple[Sign, ...]
    must: bool = False
    says: str = "CUDA"

    @property
    def slug(self) -> str:
        """The name as a part of a file's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


_CPU = {each.name: each.changes for each in MUTATIONS}
#: A capture that CUDA refuses.
REFUSED = r"(?i)cuda|captur"
ONLY = (
    GpuMutation(
        "hidden states are handed on in memory that the pool has back",
        (
            (
                "passes.py",
                "Passes._later",
                "proposer.hidden_states[:reqs].copy_(hidden)",
                """
                from vllm.utils.torch_utils import weak_ref_tensor
                self.handed = weak_ref_tensor(hidden.clone())
            """,
            ),
            (
                "passes.py",
                "Passes._run",
                "if self.observe is not None:\n    ...",
                """
                handed = vars(self).pop('handed', None)
                if handed is not None:
                    inputs['hidden_states'] = handed
                MATCH
            """,
            ),
        ),
        ("hid-k5 loop",),
        ("acceptance",),
        must=True,
    ),
    GpuMutation(
        "draft and target graphs share a pool",
        (
            (
                "graph_backend.py",
                "CudaGraphBackend.new_pool",
                "return ...",
                """
                from vllm.platforms import current_platform
                return current_platform.get_global_graph_pool()
            """,
            ),
        ),
        ("prompts-full loop", "prompts-full step", "prompts-decode loop", "prompts-decode step"),
        ("prompt logprobs",),
        must=True,
    ),
    GpuMutation(
        "the smallest graph is captured first",
        (("keys.py", "plan_keys", "reverse=True", "reverse=False"),),
        ("seqs256 loop",),
        ("memory",),
        must=True,
    ),
    GpuMutation(
        "the result is not a copy",
        _CPU["the caller gets a view of what the next replay writes"],
        ("late-reader loop", "late-copies loop"),
        ("late reader", "acceptance"),
    ),
    GpuMutation(
        "the lengths go through the host, which does not wait for them",
        (
            (
                "staging.py",
                "_FirstRows.copy",
                "_cut(batch.seq_lens, reqs)",
                "MATCH.to('cpu', non_blocking=True).clone()",
            ),
        ),
        ("host loop",),
        ("host", "acceptance"),
        must=True,
    ),
    GpuMutation(
        "FlashAttention chooses its number of splits at the capture",
        (
            (
                "passes.py",
                "Passes._run",
                "if self.observe is not None:\n    ...",
                "for each in metadata.values():\n    each.max_num_splits = 0\nMATCH",
            ),
        ),
        ("long loop",),
        ("acceptance", "error"),
    ),
    GpuMutation(
        "FlashAttention's schedule is made once, before the capture",
        (
            (
                "passes.py",
                "Passes._run",
                "_, metadata = proposer.build_per_group_and_layer_attn_metadata(...)",
                """
                made = vars(self).setdefault('made', {})
                shape = common_metadata.num_reqs, common_metadata.max_query_len
                if shape not in made:
                    (group,) = proposer.draft_attn_groups
                    ahead = group.get_metadata_builder().build(0, common_metadata)
                    made[shape] = dict.fromkeys(group.layer_names, ahead)
                metadata = made[shape]
            """,
            ),
        ),
        ("long loop",),
        ("acceptance", "error"),
        must=True,
        says="CUDA|not done after",
    ),
)


def _also(
    name: str,
    *signs: Sign,
    engine: str = "hid-k5 loop",
    changes: Changes | None = None,
    must: bool = True,
    says: str = "CUDA",
) -> GpuMutation:
    changes = _CPU[name] if changes is None else changes
    return GpuMutation(name, changes, (engine,), signs or ("acceptance",), must, says)


ALSO = (
    _also("the largest graph is registered but not captured", "error", says="KeyError"),
    _also("a graph is captured with a request less than its key says"),
    _also("the first pass and the later ones share a key", "acceptance", "error"),
    _also("later passes keep the query offsets of the first", "acceptance", "error"),
    _also(
        "the model is replaced by a wrapper",
        "error",
        "withdrawn",
        says="has no attribute|AssertionError",
    ),
    _also(
        "a static tensor is assigned again after the capture",
        "address check",
        engine="checked loop",
    ),
    _also(
        "a static tensor is assigned again, and no address is checked",
        "acceptance",
        "error",
        changes=_CPU["the same, without the address check"],
        says="CUDA|ReplayRefused",
    ),
    _also(
        "the query offsets come from the host inside the capture",
        "withdrawn",
        "error",
        changes=(
            (
                "passes.py",
                "Passes.metadata",
                "buffers.query_start_loc[query_len][: reqs + 1]",
                (
                    "torch.tensor(range(0, tokens + 1, query_len), dtype=torch.int32,"
                    " device=self.proposer.device)"
                ),
            ),
        ),
        says=REFUSED,
    ),
    _also("a length is read by the host inside the capture", "withdrawn", "error", says=REFUSED),
    _also("rejected tokens are not taken off the lengths after the first graph"),
    _also("rejected tokens are not taken off the lengths after upstream's first pass"),
    _also("a later pass does not get the hidden states of the one before"),
    _also("nothing is replayed"),
    _also("a graph for fewer requests than there are is chosen"),
    _also("one step too few is replayed", engine="hid-k5 step"),
    _also("the columns of the steps are not collected", engine="hid-k5 step"),
    # By vLLM's own warm-up all that these engines run has been loaded, and nothing of it is tuned.
    GpuMutation(
        "no warm-up before a capture",
        _CPU["no warm-up before a capture"],
        ("hid-k5 loop", "hid-k5 step", "triton loop"),
        ("withdrawn", "acceptance", "error"),
        says=REFUSED,
    ),
    # ---- on CPU the audit shows them, or what two equal indices come to there
    # Only `eagle3` reads the past through the tokens that it is given.
    _also(
        "padded rows sample where the last request does",
        engine="prompts-decode loop",
        must=False,
    ),
    _also("the slots of padded rows stay what they were", engine="preempted loop", must=False),
    _also(
        "the offsets of padded rows hold the total, so the first padded row gets a huge query",
        "acceptance",
        "error",
        must=False,
    ),
)
GPU_MUTATIONS = (*ONLY, *ALSO)
