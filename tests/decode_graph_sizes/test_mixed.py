"""Graphs of mixed batches, for whoever asks for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.package import KNOWN_RELEASES
from tests.decode_graph_sizes.test_sizes import TEXTS, VARIABLE, check_law, plain
from tests.decode_graph_sizes.worlds import Mode, Platform, beside, configuration, stock, text

pytestmark = pytest.mark.network

UTILS = "v1/worker/gpu/cudagraph_utils.py"


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch, as where mixed batches are asked for."""
    monkeypatch.setenv(VARIABLE, "mixed")


def made(
    release: str, folder: Path, config: SimpleNamespace, **given: Any
) -> tuple[SimpleNamespace, Any]:
    """A configuration as vLLM makes it, and why there are no graphs of mixed batches."""
    utils = folder / UTILS
    utils.parent.mkdir(parents=True, exist_ok=True)
    utils.write_text(text(release, f"vllm/{UTILS}"))
    compilation: SimpleNamespace = config.compilation_config
    with beside(release, folder=folder, **given) as world:
        world.sizes.cover_decodes()
        world.config.try_verify_and_update_config(config)
        if compilation.cudagraph_mode is None:  # what vLLM does where nobody set one
            compilation.cudagraph_mode = Mode.FULL_AND_PIECEWISE
        world.config._set_cudagraph_sizes(config)
        return compilation, getattr(compilation, world.sizes.MODE, "nobody asked")


@pytest.mark.parametrize("release", [str(each) for each in KNOWN_RELEASES])
def test_releases_whose_graphs_hold_prompts_get_them(release: str, tmp_path: Path) -> None:
    compilation, reason = made(release, tmp_path, configuration(cudagraph_mode=None))
    if release in ("0.31.0", "0.32.0", "0.33.0"):
        assert reason is None
        assert compilation.cudagraph_mode is Mode.FULL
        assert compilation.max_cudagraph_capture_size == 2048
        own = stock(release, configuration()).cudagraph_capture_sizes
        check_law(own, compilation.cudagraph_capture_sizes, 4, 512, 8192)
    else:
        assert "compute prompts wrongly on model runner V2 before 0.31.0" in reason
        assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
        assert compilation.max_cudagraph_capture_size == 1024


#: What is set, and a word of the reason.
SET: list[tuple[dict[str, Any], str]] = [
    ({"cudagraph_mode": Mode.PIECEWISE}, "mode is set already"),
    ({"cudagraph_capture_sizes": [1, 2, 40]}, "capture sizes, or a largest one"),
    ({"max_cudagraph_capture_size": 64}, "capture sizes, or a largest one"),
    ({"runner_type": "pooling"}, "does not decode"),
    ({"attention_config": SimpleNamespace(hisparse_config=1)}, "HiSparse"),
]


@pytest.mark.parametrize(("changed", "words"), SET)
def test_what_is_set_stays(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = {"cudagraph_mode": None, **changed}
    compilation, reason = made("0.33.0", tmp_path, configuration(**given))
    assert words in reason
    assert compilation.cudagraph_mode is (given["cudagraph_mode"] or Mode.FULL_AND_PIECEWISE)
    if "cudagraph_capture_sizes" in changed:
        assert compilation.cudagraph_capture_sizes == [1, 2, 40]


def test_on_another_platform_there_are_none(tmp_path: Path) -> None:
    config = configuration(cudagraph_mode=None)
    compilation, reason = made("0.33.0", tmp_path, config, platform=Platform("rocm"))
    assert "CUDA alone" in reason
    assert compilation.max_cudagraph_capture_size == 512


@pytest.mark.parametrize("value", ["on", "off", ""])
def test_nobody_gets_them_unasked(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    compilation, reason = made("0.33.0", tmp_path, configuration(cudagraph_mode=None))
    assert reason == "nobody asked"
    assert compilation.cudagraph_mode is Mode.FULL_AND_PIECEWISE
    assert compilation.max_cudagraph_capture_size == (512 if value == "off" else 1024)


@pytest.mark.parametrize("release", TEXTS)
def test_narrow_steps_have_no_larger_sizes(release: str, tmp_path: Path) -> None:
    config = configuration(cudagraph_mode=None, max_num_batched_tokens=512)
    compilation, _ = made(release, tmp_path, config)
    own = stock(release, configuration(max_num_batched_tokens=512))
    compilation.cudagraph_mode = own.cudagraph_mode
    assert compilation.max_cudagraph_capture_size == 512
    ours, theirs = plain(compilation), plain(own)
    ours.pop("overlay_mixed_graphs", None)
    assert ours == theirs
