"""What the tests of the plugin share: a fake vLLM for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.in_memory.boxes import Box
from tests.in_memory.hooked import PRISTINE


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("")
    (tmp_path / "vllm/mod.py").write_text(PRISTINE)
    (tmp_path / "vllm/other.py").write_text("VALUE = 1\n")
    return tmp_path
