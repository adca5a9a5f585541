"""An installed vLLM's configuration takes the sizes, and carries what was chosen. Needs vLLM."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("vllm")  # in the environment of the engine

# isort: split
from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("decode-graph-sizes")

# The feature's modules lie beside vLLM's own from here on.
# isort: split
from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
from vllm.platforms import current_platform
from vllm.v1.decode_graph_sizes import CHOICE, VARIABLE, cover_decodes


@pytest.fixture(autouse=True)
def covered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Configurations that are made as on CUDA, with the feature."""
    monkeypatch.delenv(VARIABLE, raising=False)
    own = VllmConfig._set_cudagraph_sizes
    with mock.patch.object(type(current_platform), "is_cuda", return_value=True):
        cover_decodes()
        yield
    VllmConfig._set_cudagraph_sizes = own


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
