"""One cell of the GPU scripts: an engine, what it serves and what is expected of it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.engine.engine_spec import EngineSpec, Request, make_requests

EverySize = Literal["uniform", "mixed"] | None


@dataclass(frozen=True)
class Cell:
    """One engine to run.

    :ivar mode: ``off``, ``step``, ``loop``, ``auto``, or ``off again``.
    :ivar expects: ``graphs`` (they run), ``none`` (there are none), or ``withdrawn`` (they failed
        on purpose, and nothing is left of them on any rank).
    :ivar alone: whether the engine must have its GPU for itself, because it measures its memory.
    :ivar weight: seconds beyond an ordinary cell; those with more begin first.
    :ivar every_size: whether every graph that was captured must be replayed: those of mixed batches
        (``mixed``), the others (``uniform``), or none.
    """

    name: str
    mode: str
    spec: EngineSpec
    expects: str = "graphs"
    alone: bool = False
    weight: int = 0
    every_size: EverySize = None

    @property
    def title(self) -> str:
        """What ``--only`` is matched with, and the log is named after."""
        return f"{self.name}-{self.mode.replace(' ', '-')}"

    @property
    def draft_graphs(self) -> str:
        """The value of ``OVERLAY_DRAFT_GRAPHS``."""
        return self.mode.partition(" ")[0]

    @property
    def gpus(self) -> int:
        """How many GPUs the engine wants."""
        return self.spec.tensor_parallel_size


def falling(count: int, *, shortest: int = 12, **more: Any) -> tuple[Request, ...]:
    """Requests of many lengths, so that the batch shrinks through every size."""
    made = make_requests(count, **more)
    spread = [shortest + (7 * index) % 61 for index in range(count)]
    return tuple(
        replace(request, tokens=tokens) for request, tokens in zip(made, spread, strict=True)
    )


@cache
def soaking() -> tuple[Request, ...]:
    """Requests for over 20,000 replays, eight at a time."""
    return falling(8000, shortest=60)


def release_has(path: str, text: str) -> bool:
    """Whether a file of the vLLM that will run contains a text; so, too, where there is no vLLM.

    vLLM is not imported here, and without it the cells are only listed.

    :param path: below the folder of the package.
    """
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return True
    source = Path(found.submodule_search_locations[0], path)
    return source.is_file() and text in source.read_text(encoding="utf-8")


def replayed(mode: str, kind: Literal["uniform", "mixed"] = "uniform") -> EverySize:
    """Which graphs must all be replayed in a mode: none where there are none."""
    return None if mode == "off" else kind


def expects(mode: str) -> str:
    """What is expected of an engine in a mode: graphs, or none."""
    return "none" if mode.startswith("off") else "graphs"
