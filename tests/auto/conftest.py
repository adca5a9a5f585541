"""What the tests of the plugin share: a fake vLLM for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.auto.boxes import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)
