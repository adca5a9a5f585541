"""How ``overlay bench`` starts an engine."""

from __future__ import annotations

import json
from pathlib import Path

from overlay.proof.commands.bench import Launch
from overlay.proof.commands.question import BenchQuestion, Budget, Part, Start


def test_servers_take_what_vllm_takes(tmp_path: Path) -> None:
    question = BenchQuestion(shape="trial", port=8000)
    made = Launch(question, Path("python"), tmp_path, tmp_path, tmp_path, Budget(100.0))
    job = made.job("V2, serving", Start(Part.SERVING, "V2", 0), 2.5)
    spec = json.loads((job.folder / "spec.json").read_text())
    assert (spec["port"], spec["rate"]) == (8000, 2.5)
    assert "--kv-cache-memory-bytes" not in spec["arguments"]
    assert "VLLM_CACHE_ROOT" not in job.environment
