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


@dataclass(frozen=True)
class Drafter:
    """A kind of draft.

    :ivar config: of the draft, beside what it shares with the target.
    :ivar speculative: entries of ``speculative_config``.
    :ivar folder: the name of its folder, beside the target's.
    """

    config: Mapping[str, Any]
    speculative: Mapping[str, Any]
    folder: str = "draft"


#: The draft that is timed.
EAGLE3 = Drafter(
    {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": 32000,
    },
    {"method": "eagle3"},
)


def write_configs(shape: str, folder: Path, drafter: Drafter = EAGLE3) -> tuple[Path, Path]:
    """Write the configurations of a target and its draft; return their folders.

    vLLM's compile cache goes by the folder's name too: the same one lets a later engine use it.
    """
    target = _COMMON | SHAPES[shape]
    draft = _COMMON | {key: target[key] for key in _SHARED_BY_DRAFT}
    draft |= drafter.config
    for name, config in (("target", target), (drafter.folder, draft)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        # Another engine may read the same file at this moment.
        written = folder / name / f"config.json.{os.getpid()}"
        written.write_text(json.dumps(config))
        written.replace(folder / name / "config.json")
    return folder / "target", folder / drafter.folder


def write_tokenizer(size: int, folder: Path) -> None:
    """Write a tokenizer beside a model's configuration: each of its tokens is one word.

    Clients of a server send texts and count tokens; which words these are does not matter.

    :param size: of the vocabulary.
    """
    words = {f"w{token}": token for token in range(size)}
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
