"""The tables of engines that served real text: what is shown follows from the rounds alone."""

from __future__ import annotations

import json
from pathlib import Path

from scripts import performance_real


def test_a_ratio_counts_rounds_that_both_engines_served() -> None:
    own = {"tokens_per_s": [30.0, None, 9.0, 20.0]}
    other = {"tokens_per_s": [20.0, 5.0, 10.0, None]}
    assert performance_real.over(own, other) == "1.20 (0.90 to 1.50; 1 of 2)"
    assert performance_real.over(own, own) == ""
    assert performance_real.over({"tokens_per_s": [None]}, {"tokens_per_s": [1.0]}) == ""


def test_answers_are_counted_by_the_round() -> None:
    assert performance_real.equal({"equal": ["8 of 8", "6 of 8"]}) == "6 to 8 of 8"
    assert performance_real.equal({"equal": ["8 of 8", "8 of 8"]}) == "8 of 8"
    assert performance_real.equal({"equal": []}) == ""


def test_an_engine_that_died_has_no_row(tmp_path: Path) -> None:
    cell = {"tokens_per_s": [None], "accepted": [], "equal": [], "partings": []}
    engine = {"vllm": "0.26.0", "gpu": "NVIDIA H200"}
    document = {"loads": {"1 requests": {"a": cell}}, "parties": {"a": {"engine": engine}}}
    (tmp_path / "h200-real-text-0.26.0-2026-01-01.json").write_text(json.dumps(document))
    assert performance_real.rows(tmp_path) == []
    assert performance_real.widest(tmp_path) == 0.0


def test_an_engine_with_the_overlay_is_compared_with_its_runner_and_with_v2(
    tmp_path: Path,
) -> None:
    rates = {"V1": 10.0, "V1 overlay": 20.0, "V2": 16.0, "V2 overlay": 24.0, "V2, no drafts": 8.0}
    rates |= {"V2 overlay, mixed": 32.0}
    engine = {"vllm": "0.33.0", "gpu": "NVIDIA H200"}
    document = {
        "loads": {"64 requests": {name: {"tokens_per_s": [rate]} for name, rate in rates.items()}},
        "parties": {name: {"engine": engine} for name in rates},
        "date": "2026-01-01",
    }
    (tmp_path / "h200-real-text-0.33.0-2026-01-01.json").write_text(json.dumps(document))
    about = "0.33.0, H200"
    head, *rows = performance_real.gains(tmp_path)
    assert head == ["vLLM, GPU", "engines", "64 requests"]
    assert rows == [
        [about, "V1 overlay / V1", "2.00 (1 of 1)"],
        [about, "V1 overlay / V2", "1.25 (1 of 1)"],
        [about, "V2 overlay / V2", "1.50 (1 of 1)"],
        [about, "V2 overlay, mixed / V2", "2.00 (1 of 1)"],
    ]
