"""The cells of ``acceptance.py`` for targets with several KV-cache groups, and with experts.

The models of ``tiny_hybrids``, and the tiny target with sliding windows; their tokens and accepted
counts are known.  ``mla.py`` has the cells of latent attention with experts in the draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.engine.engine_spec import EngineSpec, Request
from tests.gpu.cells import Cell, expects, falling, replayed
from tests.gpu.every_size import at_every_size

#: The folder of these models, beside those of ``tiny_models``.
FOLDER = "hybrids"
CHECK = {"OVERLAY_DRAFT_GRAPHS_CHECK": "1"}
#: The tiny target's last layer sees 32 tokens. There is one of its kind, so that all KV-cache
#: groups have one layer, and that of the draft is the last one that sees everything.
WINDOWS = {
    "layer_types": ["full_attention"] * 3 + ["sliding_attention"],
    "sliding_window": 32,
}


@dataclass(frozen=True)
class Hybrid:
    """A target and a draft.

    :ivar models: the folder below ``FOLDER``; empty for the models of ``tiny_models``.
    :ivar draft: the model in it.
    :ivar speculative: entries of ``speculative_config``.
    :ivar engine: arguments of ``vllm.LLM``.
    """

    models: str
    draft: str
    speculative: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    def spec(self, base: EngineSpec, k: int, **more: Any) -> EngineSpec:
        """The engine of a cell."""
        models = f"{base.models}/{FOLDER}/{self.models}" if self.models else base.models
        return replace(
            base,
            models=models,
            draft=self.draft,
            k=k,
            speculative=self.speculative,
            **{**more, "engine": {**base.engine, **self.engine, **more.get("engine", {})}},
        )


HYBRIDS = {
    "windows": Hybrid("", "eagle3", engine={"hf_overrides": WINDOWS}),
    "windows-hid": Hybrid("", "eagle3hid", engine={"hf_overrides": WINDOWS}),
    "gpt-oss": Hybrid("gpt-oss", "eagle3"),
    "gpt-oss-hid": Hybrid("gpt-oss", "eagle3hid"),
    # By default vLLM takes FlashInfer's prefill on Hopper, which not every installation has.
    "qwen3-next": Hybrid(
        "qwen3-next",
        "target",
        {"method": "mtp"},
        {"additional_config": {"gdn_prefill_backend": "triton"}},
    ),
}


def hybrids(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """Each target and draft at several K, mixed with prefills, at every size, and checked."""
    many: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    for name, hybrid in HYBRIDS.items():
        for mode in ("off", "step", "loop"):
            wanted = expects(mode)
            for k in (1, 3, 5):
                yield Cell(f"{name}-k{k}", mode, hybrid.spec(base, k, requests=eight), wanted)
            every = hybrid.spec(base, 3, requests=at_every_size(64, 3), **many)
            yield Cell(
                f"{name}-every-size64", mode, every, wanted, weight=10, every_size=replayed(mode)
            )
            long = hybrid.spec(base, 3, requests=falling(24, lengths=(60, 120), wave=5))
            yield Cell(f"{name}-long", mode, long, wanted)
        checked = hybrid.spec(base, 3, requests=eight, env=CHECK)
        yield Cell(f"{name}-checked", "loop", checked)
