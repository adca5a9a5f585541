"""The cells of ``acceptance.py`` with an FP8 KV cache, and with FP8 weights of target or draft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.engine.engine_spec import EngineSpec, Request
from tests.engine.tiny_eagle import DRAFTS
from tests.gpu.cells import Cell, expects, replayed
from tests.gpu.every_size import at_every_mixed_size, at_every_size

#: The folder of the quantised drafts, beside the models of ``tiny_models``.
FOLDER = "fp8"
#: By cell: arguments of ``vllm.LLM``.
FORMATS: dict[str, dict[str, Any]] = {
    "fp8-cache": {"kv_cache_dtype": "fp8"},
    "fp8-target": {"quantization": "fp8"},
    "fp8-target-and-cache": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
}
#: So that graphs that no GPU has shown are captured as well.
UNTRIED = {"OVERLAY_DRAFT_GRAPHS_UNTRIED": "on"}


def write(models: Path) -> None:
    """The tiny drafts once more, their linear layers in FP8 with a scale each, as checkpoints are.

    vLLM quantises no draft while it loads it (0.26.0: "hf_overrides must be a dict").  Needs
    PyTorch and safetensors.

    :param models: the folder of the tiny models; these are made below it.
    """
    import torch
    from safetensors.torch import load_file, save_file

    largest = torch.finfo(torch.float8_e4m3fn).max
    folder = models / FOLDER
    folder.mkdir()
    for name in ("target", "rule.json"):
        folder.joinpath(name).symlink_to(models / name)
    for draft in DRAFTS:
        tensors = {}
        for name, weight in load_file(models / draft / "model.safetensors").items():
            tensors[name] = weight
            if name.endswith(("proj.weight", "fc.weight")):
                scale = weight.abs().max().float().clamp(min=1e-6) / largest
                tensors[name] = (weight.float() / scale).to(torch.float8_e4m3fn)
                tensors[name + "_scale"] = scale
        config = json.loads((models / draft / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
        folder.joinpath(draft).mkdir()
        save_file(tensors, folder / draft / "model.safetensors", metadata={"format": "pt"})
        (folder / draft / "config.json").write_text(json.dumps(config), encoding="utf-8")


def quantised(base: EngineSpec, eight: tuple[Request, ...]) -> Iterator[Cell]:
    """Each format by itself and both, with two drafts; with a cache of FP8 at every size, too.

    Numbers are rounded otherwise than the oracle's: the engine without graphs, run twice, is the
    measure where it leaves it.
    """
    for mode in ("off", "off again", "step", "loop"):
        wanted = expects(mode)
        for name, engine in FORMATS.items():
            spec = replace(base, engine={**base.engine, **engine}, env=UNTRIED, requests=eight)
            yield Cell(name, mode, spec, wanted)
            yield Cell(f"{name}-hid-k5", mode, replace(spec, draft="eagle3hid", k=5), wanted)
        for draft in DRAFTS:
            spec = replace(base, models=f"{base.models}/{FOLDER}", draft=draft, requests=eight)
            yield Cell(f"fp8-draft-{draft}", mode, spec, wanted)
        cache = replace(base, engine={**base.engine, **FORMATS["fp8-cache"]}, env=UNTRIED)
        many = replace(cache, max_num_seqs=256, max_num_batched_tokens=8192)
        every = replace(many, k=3, requests=at_every_size(256, 3))
        kind = None if mode.startswith("off") else replayed(mode)
        yield Cell("fp8-cache-every-size256", mode, every, wanted, weight=20, every_size=kind)
        mixed = replace(many, k=3, requests=at_every_mixed_size(3))
        kind = None if mode.startswith("off") else replayed(mode, "mixed")
        yield Cell("fp8-cache-mixed-every-size", mode, mixed, wanted, weight=20, every_size=kind)
