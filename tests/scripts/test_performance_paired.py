"""The tables of engines that served in turn: what is shown follows from the rounds alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import performance_paired
from scripts.performance_paired import GAINS_HEAD, V2, brief, cells_of, gains, over


def party(effects: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    engine = {"vllm": "0.33.0", "gpu": "NVIDIA H200", "runner": V2, "effects": effects or {}}
    engine |= {name: more.pop(name) for name in ("vllm", "runner") if name in more}
    return {"variables": {}, "options": {}, "engine": engine} | more


def sitting(parties: dict[str, Any], ratio: float = 1.5, **more: Any) -> dict[str, Any]:
    first, *others = parties
    cells: dict[str, Any] = {first: {"tokens_per_s": [100.0, 200.0]}}
    cells |= {
        name: {"tokens_per_s": [150.0, None], "ratios": [ratio, ratio / 2]} for name in others
    }
    about = {"date": "2026-01-01", "shape": "1b", "drafter": "mtp", "k": 3, "parties": parties}
    return about | {"loads": {"64 mixed": cells}} | more


def written(folder: Path, **sittings: Any) -> list[performance_paired.Cell]:
    for name, document in sittings.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return cells_of(folder)


MIXED = "active: 3; cudagraph mode FULL, for mixed batches, too"
STOCK, SIZES = party(), party({"decode-graph-sizes": MIXED, "steady-scheduler": "idle: x"})


def test_ratios_are_shown_with_their_range_and_the_rounds_above_one() -> None:
    assert over([1.5, 0.75, 1.0]) == "1.00 (0.75 to 1.50; 1 of 3)"
    assert over([]) == brief([]) == ""
    assert brief([1.5, 0.75, 1.0]) == "1.00 (1 of 3)"


def test_a_new_file_of_any_name_is_a_row_of_the_newest_release(tmp_path: Path) -> None:
    old = sitting({"a": party(vllm="0.9.0"), "b": party({"x": "active"}, vllm="0.9.0")})
    cells = written(tmp_path, old=old, new=sitting({"stock": STOCK, "ours": SIZES}))
    head, *rows = gains(cells)
    assert head == [*GAINS_HEAD, "64 in flight"]
    assert rows == [["0.33.0, H200, 1b, mtp, K = 3", "decode-graph-sizes", "1.12 (1 of 2)"]]
    assert [cell.engine for cell in cells] == ["stock", "ours", "a", "b"]
    assert "150 (150 to 150; 1 rounds)" in cells[1].row


def test_the_newest_sitting_of_a_setting_is_shown(tmp_path: Path) -> None:
    parties = {"stock": STOCK, "ours": SIZES}
    cells = written(tmp_path, a=sitting(parties, 4.0, date="2026-02-02"), b=sitting(parties, 2.0))
    assert [row[-1] for row in gains(cells)[1:]] == ["3.00 (2 of 2)"]


def test_engines_with_other_drafts_are_other_rows(tmp_path: Path) -> None:
    parties = {"stock": STOCK, "ours": SIZES}
    cells = written(
        tmp_path,
        with_drafts=sitting(parties, 4.0),
        without=sitting(parties, 2.0, k=0, date="2026-02-02"),
    )
    assert [(row[0], row[-1]) for row in gains(cells)[1:]] == [
        ("0.33.0, H200, 1b, no drafts", "1.50 (1 of 2)"),
        ("0.33.0, H200, 1b, mtp, K = 3", "3.00 (2 of 2)"),
    ]
    other = sitting({"stock": STOCK, "ours": SIZES | {"options": {"k": 0}}})
    assert [cell.drafts for cell in written(tmp_path, other=other)][:2] == [
        "mtp, K = 3",
        "no drafts",
    ]


@pytest.mark.parametrize(
    "stock",
    [
        party(runner="vllm.v1.worker.gpu_model_runner"),
        party(options={"mode": "FULL"}),
        SIZES,
        STOCK | {"variables": {"OVERLAY": "off"}},
    ],
    ids=["v1", "options", "patched", "variables"],
)
def test_only_stock_v2_is_the_default(stock: dict[str, Any], tmp_path: Path) -> None:
    assert gains(written(tmp_path, a=sitting({"stock": stock, "ours": SIZES}))) == [GAINS_HEAD]


def test_variables_of_the_overlay_are_named(tmp_path: Path) -> None:
    ours = SIZES | {"variables": {"PYTHONPATH": "/x", "OVERLAY_DRAFT_GRAPHS": "step"}}
    (_, row) = gains(written(tmp_path, a=sitting({"stock": STOCK, "ours": ours})))
    assert row[1] == "decode-graph-sizes, `OVERLAY_DRAFT_GRAPHS=step`"


@pytest.mark.parametrize(
    ("shape", "release", "text", "value", "active"),
    [
        ("1b", "0.33.0", MIXED, "mixed", ""),
        ("1b", "0.33.0", MIXED, None, ""),
        ("1b", "0.33.0", "active: 3", None, ", `OVERLAY_DECODE_GRAPH_SIZES=decodes`"),
        ("8b", "0.33.0", MIXED, None, ", `OVERLAY_DECODE_GRAPH_SIZES=mixed`"),
        ("8b", "0.33.0", "active: 3", "decodes", ""),
        ("1b", "0.26.0", "active: 3", None, ""),
    ],
)
def test_what_was_asked_for_is_named_as_today(
    shape: str, release: str, text: str, value: str | None, active: str, tmp_path: Path
) -> None:
    variables = {} if value is None else {"OVERLAY_DECODE_GRAPH_SIZES": value}
    ours = party({"decode-graph-sizes": text}, vllm=release) | {"variables": variables}
    parties = {"stock": party(vllm=release), "ours": ours}
    (_, row) = gains(written(tmp_path, a=sitting(parties, shape=shape)))
    assert row[1] == f"decode-graph-sizes{active}"


def test_a_change_that_was_not_kept_is_no_gain(tmp_path: Path) -> None:
    parties = {"stock": STOCK, "ours": SIZES | {"experiment": "upside down"}}
    cells = written(tmp_path, a=sitting(parties))
    assert gains(cells) == [GAINS_HEAD]
    assert cells[1].active == "decode-graph-sizes, upside down"


def test_other_results_are_no_sittings(tmp_path: Path) -> None:
    real = {"parties": {}, "loads": {}, "date": "2026-01-01"}
    assert written(tmp_path, list=[1], real=real, other={"date": "x"}) == []
    noted = written(tmp_path, a=sitting({"stock": STOCK, "ours": SIZES}, note="a word."))
    assert noted
    assert performance_paired.notes(tmp_path) == ["- `a`: a word."]
