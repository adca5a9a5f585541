"""The packages of a transaction: the order in which they are locked, and who takes part in it.

A command that changes several packages, and one that ends an interrupted transaction over several,
holds the locks of all of them before it looks at the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from overlay.on_disk import journal, lock
from overlay.on_disk.journal import Journal, Member


@contextmanager
def held(members: Iterable[Member], timeout: float = lock.TIMEOUT) -> Iterator[tuple[Member, ...]]:
    """Hold packages as their only user, and with them the partners of interrupted transactions.

    All commands take the locks in one order, so that none waits for another in a circle.

    :yields: all that is held.
    :raises LedgerError: if a journal is damaged.
    :raises TransactionError: if a lock is not free within ``timeout`` seconds.
    """
    wanted = tuple(members)
    while True:
        party = _with_partners(wanted)
        with ExitStack() as locks:
            for member in party:
                locks.enter_context(lock.exclusive(member.root, timeout, member.package))
            # Before they were locked, another command may have begun or ended something there.
            if _with_partners(wanted) == party:
                yield party
                return


def in_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """The packages, each once, in the order in which all commands lock them."""
    return tuple(sorted(set(members), key=lambda member: (str(member.root), member.package.name)))


def _with_partners(members: Iterable[Member]) -> tuple[Member, ...]:
    """The packages and whichever others the transactions that were interrupted there are over."""
    party: set[Member] = set()
    waiting = list(members)
    while waiting:
        member = waiting.pop()
        if member in party:
            continue
        party.add(member)
        begun = journal.read(*member)
        if begun is not None:
            others = begun.members(*member)[1:]
            waiting += [other for other in others if _takes_part(other, begun)]
    return in_order(party)


def _takes_part(member: Member, begun: Journal) -> bool:
    """Whether a package has its own journal of a transaction that names it.

    A journal alone could name any folder; nothing is done to one that does not name it back.
    """
    if not os.path.isdir(member.root / member.package.name):
        return False  # removed since, so that there is nothing to end
    theirs = journal.read(*member)
    return theirs is not None and theirs.id == begun.id
