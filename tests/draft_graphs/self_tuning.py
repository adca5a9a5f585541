"""A draft model that tunes itself, as kernels do when they are first used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def tuning(model: Any) -> Iterator[None]:
    """Let the model do at its first call of each size what no capture allows."""
    tuned = set()

    def tune(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        tokens = kwargs["input_ids"]
        if tokens.shape not in tuned:
            tuned.add(tokens.shape)
            tokens[0].item()

    handle = model.register_forward_pre_hook(tune, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
