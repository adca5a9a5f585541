"""vLLM's caches that ask the files on disk keep a patch set's entries apart."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.in_memory import module_cache as caches


def registry() -> types.ModuleType:
    """vLLM's registry of models, as far as its cache goes."""
    module = types.ModuleType("vllm.model_executor.models.registry")

    class _LazyRegisteredModel:
        @staticmethod
        def _get_cache_dir() -> Path:
            return Path("/cache/modelinfos")

        def where(self) -> Path:
            return self._get_cache_dir() / "model.json"

    # To mypy it is any module.
    module._LazyRegisteredModel = _LazyRegisteredModel  # type: ignore[attr-defined]
    return module


def decorators() -> types.ModuleType:
    """vLLM's module that loads what was compiled ahead of time."""
    module = types.ModuleType("vllm.compilation.decorators")
    source = (
        "import hashlib\n"
        "def _model_hash_key(fn):\n"
        "    return hashlib.sha256(fn.__qualname__.encode()).hexdigest()\n"
        "def key_of(fn):\n"
        "    return _model_hash_key(fn)\n"
    )
    exec(source, module.__dict__)
    return module


def forward() -> None:
    """A model's forward, as far as its key goes."""


@pytest.fixture
def kept_apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Path, str]]:
    def look(key: str) -> tuple[Path, str]:
        places = registry(), decorators()
        for module in places:
            monkeypatch.setitem(sys.modules, module.__name__, module)
        if key:
            caches.keep_apart(key)
        return places[0]._LazyRegisteredModel().where(), places[1].key_of(forward)

    return look


def test_each_key_has_places_of_its_own(kept_apart: Callable[[str], tuple[Path, str]]) -> None:
    stock, one, two = kept_apart(""), kept_apart("1" * 64), kept_apart("2" * 64)
    again = kept_apart("1" * 64)
    assert stock == (
        Path("/cache/modelinfos/model.json"),
        hashlib.sha256(b"forward").hexdigest(),
    )
    assert one[0] == Path("/cache/modelinfos/overlay-1111111111111111/model.json")
    assert len({stock[0], one[0], two[0]}) == 3
    assert len({stock[1], one[1], two[1]}) == 3
    assert again == one


@pytest.mark.parametrize(
    ("module", "concerned"),
    [
        ("vllm.model_executor.models.llama", True),
        ("vllm.v1.attention.backends.flash_attn", True),
        ("vllm._custom_ops", True),
        ("vllm.v1.spec_decode.llm_base_proposer", False),
        ("vllm.v1.cudagraph_dispatcher", False),
        ("vllm.v1.worker.gpu_model_runner", False),
    ],
)
def test_only_code_of_models_concerns_them(module: str, concerned: bool) -> None:
    assert caches.concerned([module]) is concerned
