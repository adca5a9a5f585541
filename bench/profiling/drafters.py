"""The kinds of drafts that sittings time beside EAGLE3, as configurations; weights are dummies."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overlay.proof.shapes import EAGLE3, SHAPES, Drafter

_EAGLE3 = dict(EAGLE3.config)
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
}
#: The token that stands for what is not known yet, where all drafts come from one pass.
_MASK: dict[str, Any] = {"ptd_token_id": 100}
_DFLASH_LAYERS = [1, 3, 5]


@dataclass(frozen=True)
class ProfiledDrafter(Drafter):
    """A kind of draft, and what its requests need.

    :ivar adapters: how many LoRA adapters of :data:`ADAPTER_RANK` the requests share out.
    :ivar temperature: of the requests; above 0 the drafts are sampled too.
    """

    adapters: int = 0
    temperature: float = 0.0


#: Rank of the adapters that are timed.
ADAPTER_RANK = 16
#: What a draft may be, by the name behind ``+`` in a cell; the first is meant where none is named.
_DRAFTERS: dict[str, ProfiledDrafter] = {
    "eagle3": ProfiledDrafter(EAGLE3.config, EAGLE3.speculative),
    "lora": ProfiledDrafter(_EAGLE3, {"method": "eagle3"}, adapters=2),
    "sampled": ProfiledDrafter(
        _EAGLE3, {"method": "eagle3", "draft_sample_method": "probabilistic"}, temperature=0.7
    ),
    "k-by-batch-size": ProfiledDrafter(
        _EAGLE3,
        {
            "method": "eagle3",
            "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 16, 2], [17, 64, 1]],
        },
    ),
    "draft-model": ProfiledDrafter(_LLAMA, {"method": "draft_model"}),
    "pard": ProfiledDrafter(_LLAMA | _MASK, {"method": "draft_model", "parallel_drafting": True}),
    "p-eagle": ProfiledDrafter(
        _EAGLE3 | _MASK | {"num_hidden_layers": 4},
        {"method": "eagle3", "parallel_drafting": True},
    ),
    "dflash": ProfiledDrafter(
        {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "num_hidden_layers": 4,
            "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in _DFLASH_LAYERS],
            "dflash_config": {"mask_token_id": 100, "target_layer_ids": _DFLASH_LAYERS},
        },
        {"method": "dflash"},
    ),
}
DRAFTERS = {
    name: drafter if name == "eagle3" else replace(drafter, folder=name)
    for name, drafter in _DRAFTERS.items()
}


def write_adapters(shape: str, folder: Path, count: int) -> list[Path]:
    """Write LoRA adapters of a Llama's query and value projections; return their folders.

    Their weights are zeros: what they cost does not depend on them.  Needs PyTorch.
    """
    import torch
    from safetensors.torch import save_file

    target = SHAPES[shape]
    hidden, head = target["hidden_size"], target["head_dim"]
    outputs = {
        "q_proj": target["num_attention_heads"] * head,
        "v_proj": target["num_key_value_heads"] * head,
    }
    weights = {}
    for layer in range(target["num_hidden_layers"]):
        for name, width in outputs.items():
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{module}.lora_A.weight"] = torch.zeros(
                ADAPTER_RANK, hidden, dtype=torch.bfloat16
            )
            weights[f"{module}.lora_B.weight"] = torch.zeros(
                width, ADAPTER_RANK, dtype=torch.bfloat16
            )
    config = {
        "peft_type": "LORA",
        "r": ADAPTER_RANK,
        "lora_alpha": ADAPTER_RANK,
        "target_modules": list(outputs),
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    places = [folder / f"adapter-{number}" for number in range(1, count + 1)]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        save_file(weights, place / "adapter_model.safetensors", metadata={"format": "pt"})
        (place / "adapter_config.json").write_text(json.dumps(config))
    return places
