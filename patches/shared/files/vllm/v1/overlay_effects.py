# SPDX-License-Identifier: Apache-2.0
"""What each feature of vllm-overlay does in this process: active or idle, and how often.

Patched code calls `active` or `idle` as soon as it knows, `count` for each replay or fallback, and
`put` for a number that goes up and down, such as bytes of memory.
The overlay's plugin subscribes where it is installed; without it the reports stay here. Every
feature that reports adds this module with the same bytes. It needs the standard library only.

A count costs one look into a dictionary and one addition on the host: no lock, no clock, no system
call. A forked child starts without effects, counts and the parent's memory of them.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

# How many different counts of all features together are told apart; further ones share the last.
SLOTS = 256

REST = ("vllm-overlay", "further counts")

ACTIVE, IDLE = "active", "idle"

Callback = Callable[[], object]


class Meaning(NamedTuple):
    """What a number says, for a metric that several names share.

    metric: lower-case words joined by underscores, such as "replays".
    labels: name and value of each label, such as (("role", "loop"),).
    gauge: whether the number goes up and down; a counter only grows.
    """

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    gauge: bool = False


_states: dict[str, tuple[str, str]] = {}
_slots: dict[tuple[str, str], int] = {}
# What the numbers of some slots say; the others have their name alone.
_meanings: dict[tuple[str, str], Meaning] = {}
# Unsigned 64-bit integers: an array, or memory that `count_in` was given.
_numbers: Any = array("Q", bytes(8 * SLOTS))
_subscribers: list[Callback] = []
# Guards new states, new counts and an exchange of the memory; never held while a callback runs.
_lock = threading.Lock()


def active(feature: str, what: str) -> None:
    """Report that `feature` is used in this process. what: such as "14 graphs (loop)".

    Raises what a subscriber raises, here and in `idle`: one that refuses to serve.
    """
    _report(feature, ACTIVE, what)


def idle(feature: str, reason: str) -> None:
    """Report that `feature` does nothing in this process, and why: a phrase without full stop."""
    _report(feature, IDLE, reason)


def count(feature: str, name: str, meaning: Meaning | None = None) -> None:
    """Add one to what `feature` counts under `name`, such as "replays of loop".

    meaning: kept the first time that the name is counted.
    """
    slot = _slots.get((feature, name))
    if slot is None:
        slot = _new_slot(feature, name, meaning)
    # Under the GIL no other thread runs between the reading and the writing of this line.
    _numbers[slot] += 1


def put(feature: str, name: str, number: int, meaning: Meaning) -> None:
    """Have `feature` say `number` under `name`, such as "bytes of captured graphs".

    number: from 0 to 2**64 - 1.
    meaning: that of a gauge, as for `count`.
    """
    slot = _slots.get((feature, name))
    if slot is None:
        slot = _new_slot(feature, name, meaning)
    if slot != _slots.get(REST):  # which adds up what found no room
        _numbers[slot] = number


def effects() -> dict[str, dict[str, Any]]:
    """A copy of all reports: feature -> `state` ("active", "idle" or None where it has not been
    told), `text` (what is active, or the reason) and `counts` (name -> number), without gauges."""
    with _lock:
        states, numbers = dict(_states), list(_numbers)
        slots = {
            key: slot
            for key, slot in _slots.items()
            if key not in _meanings or not _meanings[key].gauge
        }
    found: dict[str, dict[str, Any]] = {}
    for feature in [*states, *(feature for feature, _ in slots)]:
        state, text = states.get(feature, (None, ""))
        found.setdefault(feature, {"state": state, "text": text, "counts": {}})
    for (feature, name), slot in slots.items():
        found[feature]["counts"][name] = numbers[slot]
    return found


def subscribe(callback: Callback) -> None:
    """Have `callback` called, without arguments, after each change of a state and each new count.

    It is called at once where something was reported before. A further addition to a known count
    calls nobody: read `effects` or the memory of `count_in`.
    """
    _subscribers.append(callback)
    if _states or _slots:
        callback()


def count_in(memory: Any) -> None:
    """Count in `memory` from now on, carrying over what was counted.

    memory: SLOTS unsigned 64-bit integers that can be written, such as a memoryview cast to "Q".
    """
    global _numbers  # noqa: PLW0603  (one process counts in one place)
    with _lock:
        for slot in range(SLOTS):
            memory[slot] = _numbers[slot]
        _numbers = memory


def counted() -> list[tuple[str, str]]:
    """The feature and name of each slot in use, in the order of the slots."""
    with _lock:
        return list(_slots)


def meanings() -> list[Meaning | None]:
    """What the number of each slot in use says, in the order of the slots; None: its name."""
    with _lock:
        return [_meanings.get(key) for key in _slots]


def _report(feature: str, state: str, text: str) -> None:
    with _lock:
        if _states.get(feature) == (state, text):
            return
        _states[feature] = (state, text)
    _notify()


def _new_slot(feature: str, name: str, meaning: Meaning | None) -> int:
    key = (feature, name)
    with _lock:
        if key not in _slots and len(_slots) >= SLOTS - 1:
            key = REST
        slot = _slots.get(key)
        if slot is not None:
            return slot
        if meaning is not None and key != REST:
            _meanings[key] = meaning
        slot = _slots[key] = len(_slots)
    _notify()
    return slot


def _notify() -> None:
    for callback in _subscribers:
        callback()


def _after_fork() -> None:
    global _numbers, _lock  # noqa: PLW0603  (the child has its own)
    # Another thread of the parent may have held the lock; the memory is the parent's.
    _lock = threading.Lock()
    _numbers = array("Q", bytes(8 * SLOTS))
    _states.clear()
    _slots.clear()
    _meanings.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
