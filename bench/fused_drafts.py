#!/usr/bin/env python3
"""Bound what one loop for all drafts would save on V2, where the attention is latent (MLA).

    fused_drafts.py FOLDER
    paired_load.py --out result.json --requests 64,1 --kinds uniform --engine "$(cat FOLDER/engine)"
        --party 'stock;PYTHONPATH=/site' --party 'fused;PYTHONPATH=/site;{"fused": true}'

With two attention backends, FLASH_ATTN_MLA and FLASHMLA, V2 builds their metadata anew on the host
for each draft, since they do not declare that a CUDA graph can update it.  ``fused`` declares it
for them and updates nothing, so drafts are wrong; acceptance is synthetic, so a step takes as long
as it would with right ones, which is all that is timed.  The folder gets the configuration of a
target with the shape of DeepSeek-V2-Lite and an MTP layer as DeepSeek-V3's, and ``engine``, the
options that go with it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

TARGET: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def options(folder: Path) -> dict[str, Any]:
    """Engine options: the target with three drafts a step, of which 1.5 are accepted."""
    return {
        "model": str(folder / "target"),
        "load_format": "dummy",
        "speculative_config": {
            "method": "mtp",
            "num_speculative_tokens": 3,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 2.5,
        },
    }


def fuse() -> None:
    """Have V2 capture one loop for all drafts with the two backends that do not offer it."""
    from vllm.v1.attention.backends.mla.flashattn_mla import FlashAttnMLAMetadataBuilder
    from vllm.v1.attention.backends.mla.flashmla import FlashMLAMetadataBuilder

    for builder in (FlashAttnMLAMetadataBuilder, FlashMLAMetadataBuilder):
        builder.supports_draft_decode_metadata_update = True
        builder.update_draft_decode_metadata = lambda *_: None


def main() -> None:
    """Write the configuration and the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder to make")
    folder: Path = parser.parse_args().folder
    (folder / "target").mkdir(parents=True, exist_ok=True)
    (folder / "target" / "config.json").write_text(json.dumps(TARGET), encoding="utf-8")
    (folder / "engine").write_text(json.dumps(options(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
