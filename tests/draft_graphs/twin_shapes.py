"""The drafters of `upstream_twin.py`, and what each is captured for."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from tests.draft_graphs.twin_model import Shape

#: Whether this release maps between vocabularies: 0.25 and later.
HAS_MAPPING = find_spec("vllm.v1.spec_decode.vocab_mapping") is not None

#: Whether this release can draw drafts by temperature: 0.22 and later.
HAS_SAMPLED = hasattr(SpecDecodeBaseProposer, "_sample_draft_tokens")

#: Whether it can draw several drafts of a request in one pass: 0.25 and later.
HAS_SEVERAL_SAMPLED = HAS_SAMPLED and "repeat_interleave" in inspect.getsource(
    SpecDecodeBaseProposer._sample_from_logits
)

#: Whether it hands ranges of a prefix language model on: 0.24 and later.
HAS_RANGES = "mm_req_doc_ranges" in {each.name for each in fields(CommonAttentionMetadata)}

#: Drafters whose first pass is not EAGLE's.
OTHER_DRAFTERS: tuple[dict[str, Any], ...] = (
    {"method": "draft_model", "returns_tuple": False},
    {"method": "draft_model", "returns_tuple": False, "parallel": True},  # PARD
    {"method": "eagle3", "parallel": True},  # P-EAGLE
    {"method": "eagle", "parallel": True},
    {"method": "dflash", "returns_tuple": False, "parallel": True},
    {"method": "dflash", "returns_tuple": False, "parallel": True, "causal": True},
)

#: What first passes over mixed batches are captured for. With two requests a graph of the later
#: passes has a padded row only behind a mixed one.
MIXED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("auto", {"k": 1, "max_num_seqs": 6}),
    ("loop", {"k": 3, "max_num_seqs": 2}),
    ("loop", {"k": 3, "max_num_seqs": 20}),
    ("step", {"k": 4, "max_num_seqs": 9, "method": "eagle"}),
    ("auto", {"k": 3, "max_num_seqs": 6, "mrope": True, "method": "mtp", "returns_tuple": False}),
    ("auto", {"k": 3, "max_num_seqs": 6, "target_mrope": True, "multimodal": True}),
    ("step", {"k": 4, "max_num_seqs": 6, "dynamic_k": True}),
    *((("auto", {"k": 3, "max_num_seqs": 8, "sampled": "rows"}),) if HAS_SAMPLED else ()),
)

SHAPES = (
    Shape(k=1, mode="auto", max_num_seqs=6, max_capture_tokens=64),
    Shape(k=2, mode="auto", max_num_seqs=9, max_capture_tokens=64),
    Shape(k=3, mode="auto", max_num_seqs=7, max_capture_tokens=64),
    Shape(k=3, mode="step", max_num_seqs=7, max_capture_tokens=64),
    # First passes beyond the largest capture size: of up to 36, 28 and 32 tokens.
    Shape(k=5, mode="loop", max_num_seqs=6, max_capture_tokens=24),
    Shape(k=3, mode="step", max_num_seqs=7, max_capture_tokens=8),
    Shape(k=3, mode="loop", max_num_seqs=8, max_capture_tokens=8, method="mtp"),
    Shape(k=3, mode="auto", max_num_seqs=5, max_capture_tokens=64, method="eagle"),
    Shape(k=4, mode="step", max_num_seqs=5, max_capture_tokens=64, method="mtp"),
    Shape(
        k=3, mode="auto", max_num_seqs=5, max_capture_tokens=64, method="mtp", returns_tuple=False
    ),
    Shape(k=3, mode="auto", max_num_seqs=6, max_capture_tokens=64, mrope=True, method="mtp"),
    Shape(k=3, mode="auto", max_num_seqs=6, max_capture_tokens=64, target_mrope=True),
    Shape(k=4, mode="step", max_num_seqs=6, max_capture_tokens=64, dynamic_k=True),
    Shape(k=4, mode="loop", max_num_seqs=6, max_capture_tokens=64, dynamic_k=True),
    Shape(k=3, mode="auto", max_num_seqs=6, max_capture_tokens=64, multimodal=True),
    Shape(
        k=3,
        mode="step",
        max_num_seqs=6,
        max_capture_tokens=64,
        mrope=True,
        multimodal=True,
        method="mtp",
        returns_tuple=False,
    ),
    *(
        Shape(k=3, mode=mode, max_num_seqs=6, max_capture_tokens=64, ranges=True)
        for mode in ("loop", "step")
        if HAS_RANGES
    ),
    *(
        Shape(k=k, mode=mode, max_num_seqs=6, max_capture_tokens=tokens, **drafter)
        for drafter in OTHER_DRAFTERS
        for k, mode, tokens in ((1, "auto", 64), (3, "auto", 24), (4, "step", 64))
    ),
    *(
        Shape(
            k=k,
            mode=mode,
            max_num_seqs=6,
            max_capture_tokens=64,
            method="draft_model",
            returns_tuple=False,
            vocabularies=True,
        )
        for k, mode in ((1, "auto"), (3, "loop"), (4, "step"))
        if HAS_MAPPING
    ),
    *(
        Shape(k=k, mode=mode, max_num_seqs=8, max_capture_tokens=64, sampled=noise, **drafter)
        for k, mode, drafter in (
            (1, "auto", {}),
            (3, "auto", {}),
            (4, "step", {}),
            (3, "auto", {"method": "draft_model", "returns_tuple": False}),
            (3, "auto", {"parallel": True}),
            (3, "auto", {"method": "dflash", "returns_tuple": False, "parallel": True}),
        )
        for noise in ("generator", "rows")
        if HAS_SAMPLED and (HAS_SEVERAL_SAMPLED or not drafter.get("parallel"))
    ),
    *(Shape(mode=mode, max_capture_tokens=64, mixed=True, **more) for mode, more in MIXED),
)
