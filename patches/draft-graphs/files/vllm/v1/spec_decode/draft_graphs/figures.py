# SPDX-License-Identifier: Apache-2.0
"""Numbers that draft graphs report in `vllm.v1.overlay_effects`, and what each says.

All are plain numbers of the host: reporting one launches nothing and waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vllm.v1.overlay_effects import Meaning, count, put

from .keys import FEATURE, ROLES, DraftKey

_KINDS = [(role, sampled) for role in ROLES for sampled in (False, True)]


def _labels(role: str, sampled: bool) -> tuple[tuple[str, str], ...]:
    return ("graph", role), ("sampled", "true" if sampled else "false")


#: Name and meaning of the count of replays, by role and whether the drafts are sampled.
REPLAYS = {
    (role, sampled): (
        f"replays of sampled {role}" if sampled else f"replays of {role}",
        Meaning("replays", _labels(role, sampled)),
    )
    for role, sampled in _KINDS
}
_GRAPHS = {
    (role, sampled): (
        f"captured graphs of sampled {role}" if sampled else f"captured graphs of {role}",
        Meaning("graphs", _labels(role, sampled), gauge=True),
    )
    for role, sampled in _KINDS
}
_MEMORY = "bytes of captured graphs", Meaning("graph_memory_bytes", gauge=True)
_WITHDRAWN = "graphs withdrawn", Meaning("withdrawn", gauge=True)

#: The count of steps in which this rank had nothing to draft for and others had.
PADDED = "steps replayed for other data-parallel ranks alone", Meaning("padded_steps")


def replayed(key: DraftKey) -> None:
    """Count one replay."""
    name, meaning = REPLAYS[key.role, key.sampled]
    count(FEATURE, name, meaning)


def padded() -> None:
    """Count a step whose graphs were replayed for other data-parallel ranks alone."""
    name, meaning = PADDED
    count(FEATURE, name, meaning)


def left(passes: str, reason: str) -> None:
    """Count a batch whose passes upstream's code runs. passes: such as "first passes"."""
    # The labels are read the first time only, but cost as little as the name.
    meaning = Meaning("left_to_upstream", (("passes", passes), ("reason", reason)))
    count(FEATURE, f"{passes} left to upstream: {reason}", meaning)


def captured(keys: Iterable[DraftKey], memory: int) -> None:
    """Report the graphs that were captured, and the bytes that they take on the device."""
    for kind, number in Counter((key.role, key.sampled) for key in keys).items():
        name, meaning = _GRAPHS[kind]
        put(FEATURE, name, number, meaning)
    put(FEATURE, _MEMORY[0], memory, _MEMORY[1])
    put(FEATURE, _WITHDRAWN[0], 0, _WITHDRAWN[1])


def dropped(keys: Iterable[DraftKey]) -> None:
    """Report that graphs which were captured are there no more."""
    for kind in {(key.role, key.sampled) for key in keys}:
        name, meaning = _GRAPHS[kind]
        put(FEATURE, name, 0, meaning)
    put(FEATURE, _MEMORY[0], 0, _MEMORY[1])


def withdrawn() -> None:
    """Report that no draft graph runs from now on although some were meant to."""
    put(FEATURE, _WITHDRAWN[0], 1, _WITHDRAWN[1])
