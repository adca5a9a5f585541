"""The models that are timed, as configurations only: their weights are dummies."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMMON: dict[str, Any] = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: Targets by name: the shapes of Llama 3.2 1B, Llama 3.1 8B and Qwen3 30B-A3B, and one to try
#: these scripts with, where there is no GPU.
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "trial": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}
_SHARED_BY_DRAFT = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
}
#: The token that stands for what is not known yet, where all drafts come from one pass.
_MASK: dict[str, Any] = {"ptd_token_id": 100}
_DFLASH_LAYERS = [1, 3, 5]


@dataclass(frozen=True)
class Drafter:
    """A kind of draft, and what its requests need.

    :ivar config: of the draft, beside what it shares with the target.
    :ivar speculative: entries of ``speculative_config``.
    :ivar adapters: how many LoRA adapters of :data:`ADAPTER_RANK` the requests share out.
    :ivar temperature: of the requests; above 0 the drafts are sampled too.
    """

    config: Mapping[str, Any]
    speculative: Mapping[str, Any]
    adapters: int = 0
    temperature: float = 0.0


#: Rank of the adapters that are timed.
ADAPTER_RANK = 16
#: What a draft may be, by the name behind ``+`` in a cell; the first is meant where none is named.
DRAFTERS: dict[str, Drafter] = {
    "eagle3": Drafter(_EAGLE3, {"method": "eagle3"}),
    "lora": Drafter(_EAGLE3, {"method": "eagle3"}, adapters=2),
    "sampled": Drafter(
        _EAGLE3, {"method": "eagle3", "draft_sample_method": "probabilistic"}, temperature=0.7
    ),
    "k-by-batch-size": Drafter(
        _EAGLE3,
        {
            "method": "eagle3",
            "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 16, 2], [17, 64, 1]],
        },
    ),
    "draft-model": Drafter(_LLAMA, {"method": "draft_model"}),
    "pard": Drafter(_LLAMA | _MASK, {"method": "draft_model", "parallel_drafting": True}),
    "p-eagle": Drafter(
        _EAGLE3 | _MASK | {"num_hidden_layers": 4},
        {"method": "eagle3", "parallel_drafting": True},
    ),
    "dflash": Drafter(
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


def write_configs(shape: str, folder: Path, drafter: str = "eagle3") -> tuple[Path, Path]:
    """Write the configurations of a target and its draft; return their folders.

    vLLM's compile cache goes by the folder's name too: the same one lets a later engine use it.
    """
    target = _COMMON | SHAPES[shape]
    draft = _COMMON | {key: target[key] for key in _SHARED_BY_DRAFT}
    draft |= DRAFTERS[drafter].config
    places = {"target": target, "draft" if drafter == "eagle3" else drafter: draft}
    for name, config in places.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        # Another engine may read the same file at this moment.
        written = folder / name / f"config.json.{os.getpid()}"
        written.write_text(json.dumps(config))
        written.replace(folder / name / "config.json")
    found = [folder / name for name in places]
    return found[0], found[1]


def write_tokenizer(shape: str, folder: Path) -> None:
    """Write a tokenizer beside a shape's configuration: each of its tokens is one word.

    Clients of a server send texts and count tokens; which words these are does not matter.
    """
    words = {f"w{token}": token for token in range(SHAPES[shape]["vocab_size"])}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "w0",
        "bos_token": "w1",
        "eos_token": "w2",
        "model_max_length": _COMMON["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content))


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
