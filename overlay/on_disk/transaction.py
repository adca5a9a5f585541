"""Apply and revert: all or nothing, under the locks of the packages that are changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from overlay.errors import LedgerError, OverlayError, TransactionError
from overlay.features.model import Feature
from overlay.on_disk import files, journal, lock, recovery
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.changes import Rebuilt, Request, to_adopt, to_apply, to_revert
from overlay.on_disk.journal import Journal, Member, Partner, reading
from overlay.on_disk.members import held, in_order
from overlay.on_disk.recovery import Part
from overlay.on_disk.site import Site, unwritable
from overlay.on_disk.writes import Intent
from overlay.package import VLLM, Package
from overlay.results import Change, Plan


class Outcome(NamedTuple):
    """What an apply or a revert did.

    :ivar changed: the files of the package that were written or removed, sorted.
    :ivar wrote: whether anything was written.
    """

    action: str
    changed: tuple[str, ...] = ()
    wrote: bool = False
    warnings: tuple[str, ...] = ()


def applying(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    *,
    release: str,
    record_file: Path | None = None,
    basis: str | None = None,
    package: Package = VLLM,
) -> Work:
    """The work that brings the target in ``root`` to what a plan wants; none where it is so.

    :param plan: made from the pristine view, needing no attention; what the ledger lists as
        applied and the plan no longer wants is removed.
    :param features: those that the plan was made from.
    :param release: the public version of the package in ``root``.
    :param record_file: RECORD, where one lies beside the package.
    :param basis: digest of the ledger that the plan was made from (``ledger.digest``), so that
        nothing is undone that another command has done since; ``None``: any ledger will do.
    :raises ValueError: if the plan needs attention.
    """
    if plan.state.needs_attention:
        raise ValueError(f"a plan that is {plan.state.value} cannot be applied")
    request = Request(plan, tuple(features), release, record_file, basis)
    return Work(root, package, lambda site: to_apply(site, request))


def would_apply(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    *,
    release: str,
    record_file: Path | None = None,
    timeout: float = lock.TIMEOUT,
    package: Package = VLLM,
) -> bool:
    """Whether applying would write anything; nothing is written, and an error is the same error.

    :raises TransactionError: as `carry_out`, for what shows without writing.
    """
    with reading(root, timeout, package):
        site = Site(root.resolve(), package)
        if plan.changes and ledgers.load(site.root, package) is None:
            # Nothing is applied yet, so everything is written; RECORD need not be parsed for that.
            for change in plan.changes:
                site.real(change.path)
            return True
        request = Request(plan, tuple(features), release, record_file)
        return bool(_worked_out(site, lambda site: to_apply(site, request)).writes)


def reverting(
    root: Path,
    *,
    release: str | None = None,
    record_file: Path | None = None,
    rebuild: Callable[[], Rebuilt] | None = None,
    basis: str | None = None,
    edits: Sequence[Change] = (),
    package: Package = VLLM,
) -> Work:
    """The work that brings the target in ``root`` back to its pristine bytes.

    :param release: the public version of the package in ``root``, where it is known.
    :param record_file: RECORD, where one lies beside the package; for a ledger that is lost.
    :param rebuild: reconstructs a ledger that is lost (``overlay.on_disk.rebuild.rebuild``).
    :param basis: digest of the ledger that is to be reverted; ``None``: any will do.
    :param edits: edited files that are saved elsewhere, from their present bytes to the pristine
        ones, which are put back as well.
    """

    def compute(site: Site) -> Intent:
        return to_revert(site, release, record_file, rebuild, basis, edits)

    return Work(root, package, compute)


def adopting(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    folders: Sequence[str],
    *,
    release: str,
    record_file: Path | None = None,
    package: Package = VLLM,
) -> Work:
    """The work that writes the ledger of patches that are in the target already, and no file.

    :param plan: made from the pristine bytes; its changes end in the bytes that are there.
    :param folders: the folders that were made for added modules, outermost first.
    """
    request = Request(plan, tuple(features), release, record_file)
    return Work(root, package, lambda site: to_adopt(site, request, tuple(folders)))


class Work(NamedTuple):
    """The writes to one package, computed under its lock.

    :ivar compute: computes the writes from the files as they are, under the lock.
    """

    root: Path
    package: Package
    compute: Callable[[Site], Intent]


def carry_out(works: Sequence[Work], timeout: float = lock.TIMEOUT) -> tuple[Outcome, ...]:
    """Change several packages in one transaction: all of it is done or nothing.

    :param works: at most one for each package.
    :param timeout: seconds to wait for other commands.
    :returns: an outcome for each, in their order.
    :raises PlanOutdated: if a ledger is another one by now than the work was computed for.
    :raises RevertRefused: if somebody edited a file after the overlay applied; nothing was changed.
    :raises TransactionError: if a package cannot be written, or is no longer as the plan found it;
        all are then in one of their two whole states, or the message says that they are not.  It
        names every package.
    :raises LedgerError: if a ledger or a pristine copy is damaged.
    """
    members = [Member(work.root.resolve(), work.package) for work in works]
    computes = {member: work.compute for member, work in zip(members, works, strict=True)}
    intents: dict[Member, Intent] = {}
    recovered: str | None = None
    try:
        with ExitStack() as readers:
            for member in in_order(members):
                readers.enter_context(reading(member.root, timeout, member.package))
            unfinished = any(journal.pending(*member) for member in members)
            if not unfinished:
                intents = {each: _worked_out(Site(*each), computes[each]) for each in members}
        if unfinished or any(intent.writes for intent in intents.values()):
            with held(members, timeout) as party:
                # Another command may have died after the shared locks were released.
                recovered = recovery.recover_locked(party)
                sites = {each: Site(*each) for each in in_order(members)}
                intents = {each: _worked_out(sites[each], computes[each]) for each in sites}
                execute([(sites[each], intents[each]) for each in sites if intents[each].writes])
    except (TransactionError, LedgerError) as error:
        _name_all(error, members)
        raise
    return tuple(
        Outcome(
            intents[member].action,
            intents[member].changed,
            bool(intents[member].writes),
            (*((recovered,) if recovered and not at else ()), *intents[member].warnings),
        )
        for at, member in enumerate(members)
    )


def _name_all(error: OverlayError, members: Sequence[Member]) -> None:
    """Add the names of all packages of a transaction to its error, where there are several."""
    if len(members) > 1 and error.args:
        names = " and ".join(map(str, members))
        text = str(error.args[0]).removesuffix(".")
        error.args = (f"{text}. It was one transaction over {names}", *error.args[1:])


def _worked_out(site: Site, work_out: Callable[[Site], Intent]) -> Intent:
    """Compute a transaction.

    :raises TransactionError: also where the system refuses to let the target be looked at, as where
        somebody exchanges a folder for a link meanwhile.
    """
    try:
        return work_out(site)
    except OSError as error:
        raise unwritable(error, "Nothing was changed.") from error


def execute(works: Sequence[tuple[Site, Intent]]) -> None:
    """Write what was computed; the caller holds the exclusive locks.

    :param works: in the order of the locks, each with something to write.
    :raises TransactionError: if the operating system refuses; everything is undone then, or the
        message says that it is not.
    """
    if not works:
        return
    parts = _parts(works)
    try:
        for (site, _), part in zip(works, parts, strict=True):
            journal.write(site.root, part.begun, site.owner, site.package)
        for (site, intent), part in zip(works, parts, strict=True):
            _stage(site, intent, part.begun)
        recovery.finish(parts)
    except OSError as error:
        recovery.settle(parts)
        raise unwritable(error, recovery.state_of(parts)) from error
    except BaseException:
        recovery.settle(parts)
        raise


def _parts(works: Sequence[tuple[Site, Intent]]) -> list[Part]:
    """The journals of a transaction, which name each other where there are several."""
    if len(works) == 1:
        ((site, intent),) = works
        return [Part(site.root, intent.journal(), site.package)]
    name = os.urandom(16).hex()  # as secrets does, whose import takes milliseconds
    parts = []
    for site, intent in works:
        partners = tuple(
            Partner(os.path.relpath(other.root, site.root), other.package.name)
            for other, _ in works
            if other is not site
        )
        begun = intent.journal()._replace(id=name, partners=partners)
        parts.append(Part(site.root, begun, site.package))
    return parts


def _stage(site: Site, intent: Intent, begun: Journal) -> None:
    """Write the new bytes of every file beside it, and keep its old bytes there."""
    root, owner = site.root, site.owner
    for folder in intent.made:
        files.make_folder(root, folder, owner)
    # The old bytes first: once all new bytes are staged, the transaction may be finished.
    for write, step in zip(intent.writes, begun.steps, strict=True):
        if write.before is not None:
            files.keep(root, step.path, step.old, write.before, write.form)
    for write, step in zip(intent.writes, begun.steps, strict=True):
        if write.after is not None:
            files.create(root, step.new, write.after, write.form)
    recovery.sync(root, begun)
