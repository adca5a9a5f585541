"""The target's LoRA adapters are taken off what the draft shares with it. Needs vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.added_modules import added

adapters: Any = added("adapters")

KERNEL = Path(__file__).resolve().parents[1] / "support" / "lora_kernel_interpreted.py"


def written_rows(tokens: int, *rows: int) -> list[list[int]]:
    """Rows that upstream's kernel writes in passes of `rows`, after `tokens` of the target."""
    ended = subprocess.run(
        [sys.executable, str(KERNEL), "--tokens", str(tokens), "--rows", *map(str, rows)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        text=True,
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = ended.stdout.splitlines()[-len(rows) :]
    return [json.loads(line)["written"] for line in lines]


def test_upstreams_kernel_writes_beyond_the_rows_of_a_later_pass() -> None:
    """Two requests with K=3: the target's batch has eight tokens, a later pass two rows."""
    pytest.importorskip("triton")
    # In one process: it imports vLLM.  In the second pass the output ends after row 1.
    assert written_rows(8, 8, 2) == [list(range(8))] * 2


class Adapted:
    """A target and a draft that share an embedding, as upstream's proposer leaves them."""

    def __init__(self) -> None:
        from vllm.config import VllmConfig
        from vllm.lora.layers import VocabParallelEmbeddingWithLoRA

        wrapper = VocabParallelEmbeddingWithLoRA.__new__(VocabParallelEmbeddingWithLoRA)
        torch.nn.Module.__init__(wrapper)
        self.plain = torch.nn.Embedding(4, 2)
        wrapper.base_layer = self.plain
        self.wrapper = wrapper
        self.target = torch.nn.Module()
        self.target.embed_tokens = wrapper
        self.config = VllmConfig()
        object.__setattr__(self.config, "lora_config", object())
        inner = torch.nn.Module()
        inner.embed_tokens = wrapper
        inner.vllm_config = self.config
        self.draft = torch.nn.Module()
        self.draft.model = inner
        # A tied head is the embedding once more.
        self.draft.lm_head = wrapper
        self.proposer = SimpleNamespace(vllm_config=self.config, model=self.draft)


def test_the_layers_below_take_the_adapted_layers_places() -> None:
    from vllm.lora.layers import BaseLayerWithLoRA

    case = Adapted()
    assert adapters.kept(case.proposer) == ()
    assert sorted(adapters.take_off(case.proposer)) == ["lm_head", "model.embed_tokens"]
    assert case.draft.model.embed_tokens is case.draft.lm_head is case.plain
    assert not [m for m in case.draft.modules() if isinstance(m, BaseLayerWithLoRA)]
    assert case.target.embed_tokens is case.wrapper, "the target keeps its adapter"
    assert case.wrapper.base_layer is case.plain
    assert adapters.take_off(case.proposer) == ()


def test_an_adapter_around_an_adapter_is_taken_off_too() -> None:
    from vllm.lora.layers import BaseLayerWithLoRA

    case = Adapted()
    outer = BaseLayerWithLoRA()
    outer.base_layer = case.wrapper
    case.draft.lm_head = outer
    adapters.take_off(case.proposer)
    assert case.draft.lm_head is case.plain


def test_a_layer_without_one_below_stays_and_is_told() -> None:
    from vllm.lora.layers import BaseLayerWithLoRA

    case = Adapted()
    case.draft.model.norm = layer = BaseLayerWithLoRA()
    assert adapters.kept(case.proposer) == ("model.norm",)
    adapters.take_off(case.proposer)
    assert case.draft.model.norm is layer


def test_nothing_changes_without_lora() -> None:
    case = Adapted()
    object.__setattr__(case.config, "lora_config", None)
    assert adapters.take_off(case.proposer) == ()
    assert case.draft.lm_head is case.wrapper


@pytest.mark.parametrize("before", [{}, {"some": "setting"}])
def test_what_vllm_compiled_for_the_adapted_draft_is_not_loaded(before: dict[str, Any]) -> None:
    """The target's key is what it was, and the draft's is another one."""
    from vllm.config import VllmConfig

    case = Adapted()
    case.config.additional_config = before
    object.__setattr__(case.config, "lora_config", None)  # an object has no hash
    stock = case.config.compute_hash()
    object.__setattr__(case.config, "lora_config", object())
    adapters.take_off(case.proposer)
    marked = case.draft.model.vllm_config
    assert isinstance(marked, VllmConfig)
    assert marked.compilation_config is case.config.compilation_config
    for config in (case.config, marked):
        object.__setattr__(config, "lora_config", None)
    assert case.config.compute_hash() == stock
    assert marked.compute_hash() != stock
    assert marked.additional_config.items() >= before.items()
