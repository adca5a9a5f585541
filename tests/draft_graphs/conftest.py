"""The vLLM that the draft graphs are proven in: a private copy, patched by the command itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.draft_graphs.forked_modules import ForkedModules, forked_modules
from tests.engine.engine_fixtures import overlay, private_vllm
from tests.support.made_once import made_once


@pytest.fixture(scope="session")
def patched_python(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of an environment whose vLLM has the feature."""
    for copy in private_vllm(engine_python, tmp_path_factory.mktemp("draft-graphs")):
        overlay("apply", copy.site)
        yield copy.python


@pytest.fixture(scope="session")
def forks(patched_python: Path) -> Iterator[ForkedModules]:
    """One process that imported this vLLM; each harness and each engine is forked from it."""
    with forked_modules(patched_python) as process:
        yield process


@pytest.fixture(scope="session")
def drafter_models(forks: ForkedModules, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the drafters beside EAGLE, and their targets."""

    def write(folder: Path) -> None:
        forks.write_models(folder, "tiny_drafters")

    return made_once(tmp_path_factory, "drafter-models", write)


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


@pytest.fixture
def effect(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """The report of the feature in this test; none of those before it."""
    from tests.draft_graphs import drafters  # noqa: F401  (puts the feature beside vLLM)

    # isort: split
    from vllm.v1 import overlay_effects

    for name in ("_states", "_slots"):
        monkeypatch.setattr(overlay_effects, name, {})
    monkeypatch.setattr(overlay_effects, "_numbers", [0] * overlay_effects.SLOTS)
    return lambda: overlay_effects.effects().get("draft-graphs", {})
