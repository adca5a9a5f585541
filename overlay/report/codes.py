"""Exit statuses, and the codes that say to programs what a command concluded."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple


class Exit(IntEnum):
    """Exit status of the command line."""

    OK = 0  # nothing needs the user
    ATTENTION = 1  # something does
    ERROR = 2  # usage or environment
    INTERRUPTED = 130


class Code(str, Enum):
    """What a command concluded, as one word for programs; the JSON has the value.

    Where a code stands in this list says which exit status goes with it.
    """

    # Nothing needs the user.
    CAN_BE_APPLIED = "can-be-applied"
    UNTESTED = "untested"
    APPLIED = "applied"
    PARTLY_APPLIED = "partly-applied"
    NOT_APPLIED = "not-applied"
    NOTHING_TO_PATCH = "nothing-to-patch"
    CAN_BE_UPDATED = "can-be-updated"
    LEFTOVERS = "leftovers"
    MIXED = "mixed"
    NOTHING_NEW = "nothing-new"
    NOTHING_WORSE = "nothing-worse"
    ALREADY_APPLIED = "already-applied"
    WOULD_APPLY = "would-apply"
    REMOVED = "removed"
    ADOPTED = "adopted"
    NOTHING_TO_ADOPT = "nothing-to-adopt"
    REVERTED = "reverted"
    NOTHING_TO_REVERT = "nothing-to-revert"
    DIFFERS = "differs"
    EMPTY = "empty"
    LISTED = "listed"
    PRINTED = "printed"
    LOGGED = "logged"
    CAN_BE_PRUNED = "can-be-pruned"
    PRUNED = "pruned"
    EXPORTED = "exported"
    NOTHING_TO_PRUNE = "nothing-to-prune"
    RUNNING = "running"
    NOT_RUNNING = "not-running"
    NO_PROBLEM = "no-problem"
    CACHE = "cache"
    CACHE_CLEANED = "cache-cleaned"
    IMPORTED = "imported"
    MADE = "made"
    SESSION = "session"
    COMMITTED = "committed"
    ABORTED = "aborted"
    RESHAPED = "reshaped"
    CAN_BE_PORTED = "can-be-ported"
    PORTED = "ported"
    NOTHING_TO_PORT = "nothing-to-port"
    PORT_ENDED = "port-ended"
    VERIFIED = "verified"
    WITHOUT_GRAPHS = "without-graphs"
    MEASURED = "measured"
    # Something needs the user.
    NEEDS_ATTENTION = "needs-attention"
    GOT_WORSE = "got-worse"
    APPLY_COMPLETES = "apply-completes"
    INTERRUPTED = "interrupted"
    UNRECORDED = "unrecorded"
    NOT_AT_HAND = "not-at-hand"
    COPIES_DAMAGED = "copies-damaged"
    REQUIRED_MISSING = "required-missing"
    UNTESTED_REFUSED = "untested-refused"
    REVERT_REFUSED = "revert-refused"
    HOLES = "holes"
    IMPORT_REVIEW = "import-review"
    NOT_IMPORTED = "not-imported"
    NOT_MADE = "not-made"
    NOTHING_EDITED = "nothing-edited"
    UNCHANGED = "unchanged"
    COMMITTED_IN_PART = "committed-in-part"
    KEPT_IN_PART = "kept-in-part"
    PORT_REVIEW = "port-review"
    PORT_CONFLICTS = "port-conflicts"
    PROBLEMS = "problems"
    DRAFTS_DIFFER = "drafts-differ"
    ENGINE_DIED = "engine-died"
    NOT_VERIFIED = "not-verified"
    SLOWER = "slower"
    NO_GRAPHS = "no-graphs"
    # Usage or environment.
    USAGE = "usage"
    ENVIRONMENT = "environment"
    BUG = "bug"
    NOT_PLACED = "not-placed"

    @property
    def exit(self) -> Exit:
        """The exit status that goes with it."""
        place = _ORDER.index(self)
        if place >= _FIRST_ERROR:
            return Exit.ERROR
        return Exit.ATTENTION if place >= _FIRST_ATTENTION else Exit.OK


#: In the order above, in which each kind stands together.
_ORDER = tuple(Code)
_FIRST_ATTENTION, _FIRST_ERROR = map(_ORDER.index, (Code.NEEDS_ATTENTION, Code.USAGE))


class Verdict(NamedTuple):
    """What a command concluded: a code for programs and one sentence for people."""

    code: Code
    text: str
