"""What the page says of engines that served real text is what their JSON says."""

from __future__ import annotations

import json
from pathlib import Path

from scripts import performance_real, render_performance

RESULTS, PAGE = render_performance.RESULTS, render_performance.PAGE
TRAINING = RESULTS / "h200-real-pair-training-2026-11-26.json"


def test_a_ratio_counts_rounds_that_both_engines_served() -> None:
    own = {"tokens_per_s": [30.0, None, 9.0, 20.0]}
    other = {"tokens_per_s": [20.0, 5.0, 10.0, None]}
    assert performance_real.over(own, other) == "1.20 (0.90 to 1.50; 1 of 2 above 1)"
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


def test_the_prose_has_the_figures_of_the_json() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    figures = json.loads(TRAINING.read_text(encoding="utf-8"))
    shares = ", ".join(f"{share:.2f}" for share in figures["accepted"][:3])
    assert f"continued {shares} and {figures['accepted'][3]:.2f} rightly" in page
    assert f"{figures['answers']['trained_on']:,} answers" in page
    assert f"{figures['curve'][-1]['update']:,} updates" in page
    assert f"more than {performance_real.widest(RESULTS):.2f} apart" in page
