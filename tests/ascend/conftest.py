"""The environment for vllm-ascend's own code, and sites with its releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import environment
from tests.engine.engine_fixtures import ASCEND, note_missing


@pytest.fixture(scope="session")
def ascend_python(engine_python: Path, pytestconfig: pytest.Config) -> Path:
    """The interpreter of the environment with torch_npu, made first where it is not there."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return environment.ascend_python()
    except environment.AscendUnavailable as error:
        note_missing(pytestconfig, str(error), ASCEND)
        pytest.skip(f"no torch_npu: {error}")
