"""The vLLM that the draft graphs are proven in: a private copy, patched by the command itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engine_fixtures import overlay, private_vllm


@pytest.fixture(scope="session")
def patched_python(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of an environment whose vLLM has the feature."""
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("draft-graphs")):
        overlay("apply", copy.site)
        yield copy.python


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process, one rank, which writes the log."""
    from tests.draft_graphs import drafters

    with drafters.one_rank(monkeypatch):
        yield


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the draft graphs of a `drafters.Drafter` say, with its level."""
    from tests.draft_graphs import drafters

    return drafters.listen(monkeypatch)
