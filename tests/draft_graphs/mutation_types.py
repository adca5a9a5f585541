"""What a mutation of the draft graphs is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.support.code_edits import Edit

#: What shows the mutation: wrong counts of accepted drafts; the audit around every call; the
#: module's own address check; an error while serving; the graph double refusing; the graphs not
#: being used, or used for what they must not be; a sabotage that the address check does not name.
Catcher = Literal[
    "acceptance", "audit", "address check", "error", "graph double", "use", "sabotage"
]

#: The engine that shows it: by the draft that depends most on what is broken, or by what makes
#: the code that is broken run.
Engine = Literal["eagle3hid", "eagle3", "kernel blocks", "LoRA", "another KV-cache group"]


@dataclass(frozen=True)
class Mutation:
    """One bug.

    :ivar stands_for: "defect N" of the closed upstream change, "hazard N" of the table of capture
        hazards, or what else it is about.
    :ivar changes: edits of the package, as `tests.support.code_edits` makes them.
    :ivar check: whether the module's address check is on.
    :ivar says: a part of what the error, or the module's warning, must say.
    :ivar sabotage: what is replaced after the capture, which the address check no longer names.
    :ivar tunes: whether the draft model tunes itself, as in `harness.Run`.
    """

    name: str
    stands_for: str
    changes: tuple[Edit, ...]
    catcher: Catcher
    mode: str = "loop"
    says: str = ""
    check: bool = True
    engine: Engine = "eagle3hid"
    sabotage: str | None = None
    tunes: bool = False


@dataclass(frozen=True)
class TwinMutation:
    """One bug that no engine here can show, but random batches beside upstream's code.

    :ivar stands_for, changes: as in `Mutation`.
    :ivar script: the twin that shows it, and `options` what it is told.
    :ivar says: a part of its error.
    :ivar captured: whether it is drafts or the KV cache that show it, and not a capture.
    """

    name: str
    stands_for: str
    changes: tuple[Edit, ...]
    script: str
    options: tuple[str, ...]
    says: str
    captured: bool = True


@dataclass(frozen=True)
class UnitMutation:
    """One bug that a test without an engine shows.

    :ivar stands_for, changes: as in `Mutation`.
    """

    name: str
    stands_for: str
    changes: tuple[Edit, ...]


def one(file: str, scope: str, old: str, new: str) -> tuple[Edit, ...]:
    """The changes of a mutation that makes one."""
    return ((file, scope, old, new),)
