"""An installed vLLM's configuration takes the sizes, and carries what was chosen. Needs vLLM."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("decode-graph-sizes")

# The feature's modules lie beside vLLM's own from here on. vLLM imports this one where it has no
# note of a model yet, and what it imports fails where the platform seems to be CUDA.
# isort: split
import vllm.model_executor.model_loader  # noqa: F401
from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.decode_graph_sizes import CHOICE, MODE, VARIABLE, cover_decodes

from overlay.proof.tiny_models import llama_config


@pytest.fixture(autouse=True)
def covered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Configurations that are made as on CUDA, with the feature."""
    monkeypatch.delenv(VARIABLE, raising=False)
    upstream = ("_set_cudagraph_sizes", "try_verify_and_update_config")
    own = {name: vars(VllmConfig)[name] for name in upstream}
    with mock.patch.object(type(current_platform), "is_cuda", return_value=True):
        cover_decodes()
        yield
    for name, function in own.items():
        setattr(VllmConfig, name, function)


def chosen(**given: Any) -> Any:
    """A compilation configuration of 1,024 requests at a time."""
    config: Any = VllmConfig()
    config.compilation_config = CompilationConfig(
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, **given
    )
    config.scheduler_config.max_num_seqs = 1024
    config.scheduler_config.max_num_batched_tokens = 8192
    config.model_config = SimpleNamespace(enforce_eager=False, runner_type="generate")
    config._set_cudagraph_sizes()
    return config.compilation_config


def test_it_has_the_sizes_and_what_was_chosen() -> None:
    compilation = chosen()
    assert compilation.cudagraph_capture_sizes[-1] == 1024
    assert compilation.max_cudagraph_capture_size == 1024
    own, reason = getattr(compilation, CHOICE)
    assert (own[-1], reason) == (512, None)
    for carried in (pickle.loads(pickle.dumps(compilation)), copy.deepcopy(compilation)):
        assert getattr(carried, CHOICE) == (own, None)
        assert carried.compute_hash() == compilation.compute_hash()


@pytest.mark.parametrize(
    "given", [{"cudagraph_capture_sizes": [1, 2, 40]}, {"max_cudagraph_capture_size": 256}]
)
def test_what_a_user_set_stays(given: dict[str, Any]) -> None:
    compilation = chosen(**given)
    assert compilation.max_cudagraph_capture_size == (
        40 if "cudagraph_capture_sizes" in given else 256
    )
    assert "set already" in getattr(compilation, CHOICE)[1]


#: What a user sets, and what becomes of mode, largest size and graphs of mixed batches.
MADE: list[tuple[dict[str, Any], str, int, str | None]] = [
    ({}, "FULL", 2048, None),
    ({"switch": "mixed", "enable_lora": True}, "FULL", 2048, None),
    ({"optimization_level": 0}, "NONE", 0, "vLLM chose cudagraph mode NONE"),
    ({"optimization_level": 1}, "PIECEWISE", 512, "vLLM chose cudagraph mode PIECEWISE"),
    ({"enforce_eager": True}, "NONE", 0, "set already"),
    (
        {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}},
        "FULL_DECODE_ONLY",
        512,
        "set",
    ),
    ({"compilation_config": {"mode": 0}}, "FULL_DECODE_ONLY", 512, "chose cudagraph mode FULL_DE"),
    ({"enable_lora": True}, "FULL_AND_PIECEWISE", 512, "with adapters"),
]


@pytest.mark.parametrize(("given", "mode", "largest", "reason"), MADE)
def test_a_whole_configuration(
    given: dict[str, Any],
    mode: str,
    largest: int,
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As vLLM makes it of a user's arguments, in its own order, where its platform is CUDA's."""
    config = llama_config(192, "LlamaForCausalLM", 1)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    given = dict(given)
    monkeypatch.setenv(VARIABLE, given.pop("switch", "on"))
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)  # the tests' own
    platform = type(current_platform)
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)
    monkeypatch.setattr(platform, "support_static_graph_mode", lambda *_: True)
    monkeypatch.setattr(platform, "check_and_update_config", lambda *_: None)
    arguments = {"max_model_len": 512, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    engine = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, **arguments, **given)
    compilation = engine.create_engine_config().compilation_config
    assert compilation.cudagraph_mode is CUDAGraphMode[mode]
    assert compilation.max_cudagraph_capture_size == largest
    why = getattr(compilation, MODE)
    assert why is None if reason is None else reason in why
