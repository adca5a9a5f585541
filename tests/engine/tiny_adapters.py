"""Write LoRA adapters of the tiny target whose effect is known: each swaps tokens' embeddings.

With the adapter the target takes each token of a pair for the other one, and follows
``expected_steps.adapted``; a draft that shares the target's embedding without its adapter goes on
as before, and is wrong after those tokens.

An adapter is ``adapter_config.json`` and ``adapter_model.safetensors``, as PEFT writes them.  Needs
PyTorch and safetensors, no vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from overlay.proof.oracle import Rule
from tests.engine.expected_steps import swapped

#: The adapters that ``tiny_models`` writes, in a folder of their own beside the models.
ADAPTERS: Final = ("swap-one", "swap-two")
FOLDER: Final = "adapters"
#: vLLM's smallest limit that all releases take; the adapters' own ranks are smaller.
MAX_RANK: Final = 8


def adapter_folder(models: str, name: str) -> str:
    """The folder of the adapter below the models' folder."""
    return f"{models}/{FOLDER}/{name}"


def write_adapter(folder: Path, rule: Rule, name: str, hidden: int) -> None:
    """Write one adapter.

    :param hidden: dimensions of the target's residual stream; a token's own is its id.

    A pair is one rank: its row of A is 1 at one token and -1 at the other, its column of B moves
    the embedding from the one's dimension to the other's.
    """
    import torch
    from safetensors.torch import save_file

    pairs = swapped(rule, name)
    a, b = torch.zeros(len(pairs), rule.vocab), torch.zeros(hidden, len(pairs))
    for rank, (one, other) in enumerate(pairs):
        a[rank, one], a[rank, other] = 1, -1
        b[other, rank], b[one, rank] = 1, -1
    layer = "base_model.model.model.embed_tokens"
    tensors = {f"{layer}.lora_embedding_A": a, f"{layer}.lora_embedding_B": b}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: value.to(torch.bfloat16) for key, value in tensors.items()},
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": len(pairs),
        "lora_alpha": len(pairs),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["embed_tokens"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
