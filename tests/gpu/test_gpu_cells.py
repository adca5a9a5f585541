"""The cells of the GPU scripts: they cannot hinder each other, and each has its measure."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import overlay
from tests.engine import tiny_mla
from tests.gpu import acceptance, backends, machine, mla, ray_executor
from tests.gpu.placing import Slots

UNIFORM = "QueryLenSupport.UNIFORM"


def test_ray_engines_take_different_ports() -> None:
    """As `RayExecutorV2._select_tcpstore_port` chooses: a window 100 above the master's."""
    masters = [
        int(spec.env[ray_executor.MASTER_PORT])
        for _, _, spec in ray_executor.cells("models")
        if spec.engine["distributed_executor_backend"] == "ray"
    ]
    assert len(masters) > 2
    taken = [
        port for each in masters for port in range(each + 100, each + 100 + ray_executor.WINDOW)
    ]
    assert len(set(taken)) == len(taken)
    assert min(taken) > 1024
    assert max(taken) < 32768  # Linux gives away ports from there on.


@pytest.mark.parametrize("backend", [None, "FLASHINFER", "TRITON_MLA"])
def test_cells_of_a_backend(backend: str | None) -> None:
    cells = list(backends.all_cells("models", backend))
    assert set(Counter(cell.title for cell in cells).values()) == {1}
    assert {cell.mode for cell in cells} == {"off", "step", "loop"}
    for cell in cells:
        assert cell.spec.env["OVERLAY_DRAFT_GRAPHS_UNTRIED"] == "on"
        assert cell.expects == ("none" if cell.mode == "off" else "graphs")
        assert cell.spec.attention_backend == backend
        # Latent attention needs a model that has it, and an MTP layer a prompt of three tokens.
        latent = backend == "TRITON_MLA"
        assert ("model" in cell.spec.engine) == latent
        assert cell.spec.draft in (tiny_mla.DRAFTS if latent else ("eagle3", "eagle3hid"))
        assert min(len(each.prompt) for each in cell.spec.requests) >= (3 if latent else 2)


@pytest.mark.slow
def test_a_results_file_says_what_it_is_from(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "device", lambda: {"name": "a device"})
    ran = {"cell": "k1", "mode": "loop", "vllm": "0.32.0", "ok": True, "wall_s": 1.0}
    monkeypatch.setattr(acceptance, "run_cell", lambda *_: dict(ran))
    cells = list(backends.all_cells("models", "FLASHINFER"))[:2]
    out, told = tmp_path / "result.json", machine.describe(["--row", "XQA"])
    acceptance.run_cells(cells, Slots((), 1), out, tmp_path, 1, lambda results: None, told)
    document = json.loads(out.read_text())
    assert document["command"] == ["--row", "XQA"]
    assert document["overlay"]["version"] == overlay.__version__
    assert document["device"] == {"name": "a device"}
    assert document["release"] == "0.32.0"
    assert document["cells"] == [ran, ran]
    assert set(document) >= {"date", "python", "system", "packages", "driver"}


def test_the_patches_of_a_results_file_are_told_apart(tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "vllm" / machine.DRAFT_GRAPHS
    folder.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    assert machine.digest_of_patches() is None
    digests = set()
    for text in ("one", "other"):
        (folder / "keys.py").write_text(text)
        digests.add(machine.digest_of_patches())
    assert len(digests) == 2
    assert None not in digests


@pytest.mark.slow
def test_a_device_that_cannot_be_asked_is_told_with_the_error(monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "_DEVICE", "raise RuntimeError('no device')")
    assert "no device" in machine.device()["error"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["FLASHINFER (XQA)"], None),
        (["FLASHINFER (native)"], "not with a row named 'XQA'"),
        ([None], "not with a row named 'XQA'"),
        ([], "not with a row named 'XQA'"),
        (["FLASHINFER (XQA)", "TRITON_ATTN"], "not with a row named 'XQA'"),
    ],
)
def test_a_cell_that_ran_on_another_row_has_failed(
    monkeypatch: pytest.MonkeyPatch, rows: list[str | None], why: str | None
) -> None:
    monkeypatch.setattr(backends, "judge", lambda results: None)
    result: dict[str, Any] = {"ok": True, "expects": "graphs", "captured": {"rows": rows}}
    backends.judge_by("XQA")([result])
    assert result["ok"] == (why is None)
    assert why is None or why in result["why"]
    without = {"ok": True, "expects": "none", "captured": {"graphs": None}}
    backends.judge_by("XQA")([without])
    assert without["ok"]


@pytest.mark.parametrize("source", ["", UNIFORM])
def test_latent_attention_cells(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(mla, "vllm_source", lambda _: source)
    cells = list(mla.all_cells("models", mla.UNCOMPILED))
    titles = Counter(cell.title for cell in cells)
    assert set(titles.values()) == {1}
    assert all(cell.expects == "graphs" for cell in cells[:6])
    for cell in cells:
        triton = cell.spec.attention_backend == "TRITON_MLA"
        graphs = not cell.mode.startswith("off") and not triton
        assert cell.expects == ("graphs" if graphs else "none")
        if triton and cell.mode == "step" and source != UNIFORM:
            assert f"{cell.name}-off" in titles


def test_only_upstream_without_graphs_is_measured_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where drafts may leave the oracle, nothing of the overlay runs in the reference."""
    monkeypatch.setattr(mla, "vllm_source", lambda _: "")
    cells = list(mla.all_cells("models", mla.UNCOMPILED))
    again = [cell for cell in cells if cell.mode == "off again"]
    assert again
    for cell in again:
        first = next(each for each in cells if each.name == cell.name and each.mode == "off")
        assert first.spec == cell.spec
        assert cell.spec.env == mla.UPSTREAM
