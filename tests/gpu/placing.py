"""Which engine runs on which GPUs of a host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Slots:
    """Room for engines on GPUs, given away in the order in which it is asked for.

    :param gpus: their indices; without any there is one GPU, whichever the engine sees.
    :param jobs: how many engines one GPU holds.
    """

    def __init__(self, gpus: tuple[str, ...], jobs: int) -> None:
        self._named = bool(gpus)
        self._jobs = jobs
        self._free = dict.fromkeys(gpus or ("",), jobs)
        self._changed = threading.Condition()
        self._waiting: list[object] = []

    @property
    def count(self) -> int:
        """How many engines there can be at a time."""
        return self._jobs * len(self._free)

    @contextmanager
    def room(self, gpus: int, *, alone: bool = False) -> Iterator[tuple[str, ...]]:
        """Wait for room on that many GPUs and hold it; their indices, or none if none are named.

        :param alone: with no other engine on them.
        :raises ValueError: if there are not so many.
        """
        if gpus > len(self._free):
            raise ValueError(f"{gpus} GPUs were asked for, there are {len(self._free)}")
        taken = self._jobs if alone else 1
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and len(self._with(taken)) >= gpus
                )
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
            # The emptiest first, so that engines spread over the GPUs.
            chosen = self._with(taken)[:gpus]
            for gpu in chosen:
                self._free[gpu] -= taken
        try:
            yield tuple(chosen) if self._named else ()
        finally:
            with self._changed:
                for gpu in chosen:
                    self._free[gpu] += taken
                self._changed.notify_all()

    def _with(self, taken: int) -> list[str]:
        able = [gpu for gpu, free in self._free.items() if free >= taken]
        return sorted(able, key=lambda gpu: -self._free[gpu])
