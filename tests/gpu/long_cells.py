"""The cells of ``acceptance.py`` whose positions pass 32,768."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.engine.engine_spec import EngineSpec, make_requests
from tests.gpu.cells import Cell, expects

#: The folder of the models, beside those of ``tiny_models``: theirs, with more positions.
FOLDER = "long"
POSITIONS = 40_960
#: Tokens of a prompt: some pass 32,768 while they are answered, others begin beyond it.
PROMPTS = (32_700, 32_900)
#: Bytes for the KV cache of four such requests.
KV_BYTES = 3 << 30


def write(models: Path, positions: int = POSITIONS) -> None:
    """The tiny models once more, with so many positions: nothing but their configuration says it.

    :param models: the folder of the tiny models; theirs is made below it.
    """
    long = models / FOLDER
    for config in sorted(models.glob("*/config.json")):
        folder = long / config.parent.name
        shutil.copytree(config.parent, folder, copy_function=os.link)
        entries = json.loads(config.read_text(encoding="utf-8"))
        copy = folder / config.name
        copy.unlink()  # a link to the one that is copied
        entries["max_position_embeddings"] = positions
        copy.write_text(json.dumps(entries), encoding="utf-8")
    shutil.copy2(models / "rule.json", long / "rule.json")


def long(
    base: EngineSpec, positions: int = POSITIONS, prompts: tuple[int, int] = PROMPTS
) -> Iterator[Cell]:
    """Each draft, with and without graphs."""
    spec = replace(
        base,
        models=f"{base.models}/{FOLDER}",
        max_model_len=positions,
        max_num_batched_tokens=8192,
        engine={**base.engine, "kv_cache_memory_bytes": KV_BYTES},
        requests=make_requests(4, tokens=160, lengths=prompts),
    )
    for mode in ("off", "step", "loop"):
        for draft in ("eagle3", "eagle3hid", "eagle1"):
            title = f"beyond-32768-{draft}"
            yield Cell(title, mode, replace(spec, draft=draft), expects(mode), weight=10)
