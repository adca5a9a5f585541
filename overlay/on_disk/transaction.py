"""Apply and revert: all or nothing of a package, under its lock; several one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from overlay._features.model import Feature
from overlay.errors import (
    LedgerError,
    OverlayError,
    PlanOutdated,
    RevertRefused,
    TransactionError,
    command,
)
from overlay.on_disk import files, journal, recovery
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.changes import Application, Intent, Rebuilt, to_adopt, to_apply, to_revert
from overlay.on_disk.files import Site, unwritable
from overlay.on_disk.journal import Journal, reading
from overlay.package import Package
from overlay.results import Change, Plan
from overlay.targets import Target


class TransactionResult(NamedTuple):
    """What an apply or a revert did.

    :ivar changed: the files of the package that were written or removed, sorted.
    :ivar wrote: whether anything was written.
    """

    action: str
    changed: tuple[str, ...] = ()
    wrote: bool = False
    warnings: tuple[str, ...] = ()


def applying(
    target: Target, plan: Plan, features: Sequence[Feature], basis: str | None = None
) -> Work:
    """The work that brings a target to what a plan wants; none where it is so.

    :param plan: made from the pristine view, needing no attention; what the ledger lists as
        applied and the plan no longer wants is removed.
    :param features: those that the plan was made from.
    :param basis: digest of the ledger that the plan was made from (``ledger.digest``), so that
        nothing is undone that another command has done since; ``None``: any ledger will do.
    :raises ValueError: if the plan needs attention.
    """
    if plan.state.needs_attention:
        raise ValueError(f"a plan that is {plan.state.value} cannot be applied")
    request = Application(plan, tuple(features), target.stated, target.record_file, basis)
    return Work(target, lambda site: to_apply(site, request))


def would_apply(
    target: Target, plan: Plan, features: Sequence[Feature], timeout: float = journal.TIMEOUT
) -> bool:
    """Whether applying would write anything; nothing is written, and an error is the same error.

    :raises TransactionError: as `carry_out`, for what shows without writing.
    """
    work = applying(target, plan, features)
    with reading(work.root, timeout, work.package):
        site = Site(work.root, work.package)
        if plan.changes and ledgers.load(site.root, work.package) is None:
            # Nothing is applied yet, so everything is written; RECORD need not be parsed for that.
            for change in plan.changes:
                site.real(change.path)
            return True
        return bool(_worked_out(site, work.compute).writes)


def reverting(
    target: Target,
    rebuild: Callable[[], Rebuilt] | None = None,
    basis: str | None = None,
    edits: Sequence[Change] = (),
) -> Work:
    """The work that brings a target back to its pristine bytes.

    :param rebuild: reconstructs a ledger that is lost (``overlay.on_disk.rebuild.rebuild``).
    :param basis: digest of the ledger that is to be reverted; ``None``: any will do.
    :param edits: edited files that are saved elsewhere, from their present bytes to the pristine
        ones, which are put back as well.
    """
    release, record_file = target.public, target.record_file
    return Work(target, lambda site: to_revert(site, release, record_file, rebuild, basis, edits))


def adopting(
    target: Target, plan: Plan, features: Sequence[Feature], folders: Sequence[str]
) -> Work:
    """The work that writes the ledger of patches that are in a target already, and no file.

    :param plan: made from the pristine bytes; its changes end in the bytes that are there.
    :param folders: the folders that were made for added modules, outermost first.
    """
    request = Application(plan, tuple(features), target.stated, target.record_file)
    return Work(target, lambda site: to_adopt(site, request, tuple(folders)))


class Work(NamedTuple):
    """The writes to one package, computed under its lock.

    :ivar compute: computes the writes from the files as they are, under the lock.
    """

    target: Target
    compute: Callable[[Site], Intent]

    @property
    def package(self) -> Package:
        """The package that is written to."""
        return self.target.package

    @property
    def root(self) -> Path:
        """The folder that holds it."""
        assert self.target.root is not None, "a command that writes has refused what has no folder"
        return self.target.root.resolve()


def carry_out(
    works: Sequence[Work], timeout: float = journal.TIMEOUT
) -> tuple[TransactionResult, ...]:
    """Change packages one after the other, each in a transaction of its own: all of it or nothing.

    Nothing is written to the first unless the work on each can be done.

    :param works: at most one for each package.
    :param timeout: seconds to wait for other commands.
    :returns: an outcome for each, in their order.
    :raises PlanOutdated: if a ledger is another one by now than the work was computed for.
    :raises RevertRefused: if somebody edited a file after the overlay applied; nothing was changed.
    :raises TransactionError: if a package cannot be written, or is no longer as the plan found it;
        it is then in one of its two whole states, or the message says that it is not.  The message
        names which other package was written before, and which was not.
    :raises LedgerError: if a ledger or a pristine copy is damaged.
    """
    intents = [_intended(work, timeout) for work in works]
    outcomes: list[TransactionResult] = []
    for work, intent in zip(works, intents, strict=True):
        try:
            outcomes.append(_carried_out(work, intent, timeout))
        except PlanOutdated:
            raise
        except RevertRefused as error:
            if not any(each.wrote for each in outcomes):
                raise
            raise TransactionError(_halfway(error, works, outcomes)) from error
        except (TransactionError, LedgerError) as error:
            error.args = (_halfway(error, works, outcomes), *error.args[1:])
            raise
    return tuple(outcomes)


def _intended(work: Work, timeout: float) -> Intent | None:
    """What would be written; ``None`` where something has to be ended first."""
    root = work.root
    with reading(root, timeout, work.package):
        if journal.pending(root, work.package):
            return None
        return _worked_out(Site(root, work.package), work.compute)


def _carried_out(work: Work, intent: Intent | None, timeout: float) -> TransactionResult:
    """Change one package.

    :param intent: what there was to write a moment ago.
    """
    root, package = work.root, work.package
    recovered = None
    if intent is None or intent.writes:
        with journal.exclusive(root, timeout, package):
            # Another command may have died after the shared lock was released.
            recovered = recovery.recover_locked(root, package)
            site = Site(root, package)
            intent = _worked_out(site, work.compute)
            if intent.writes:
                execute(site, intent)
    warnings = (*((recovered,) if recovered else ()), *intent.warnings)
    return TransactionResult(intent.action, intent.changed, bool(intent.writes), warnings)


def _halfway(
    error: OverlayError, works: Sequence[Work], outcomes: Sequence[TransactionResult]
) -> str:
    """The message of an error, with what was written to other packages and what was not."""
    places = [f"{work.package.title} in {work.root}" for work in works]
    written = [place for place, each in zip(places, outcomes, strict=False) if each.wrote]
    failed, *rest = places[len(outcomes) :]
    facts = [f"that is about {failed}"] if written or rest else []
    facts += [f"{' and '.join(written)} was written before it, whole"] if written else []
    facts += [f"nothing was written to {' and '.join(rest)}"] if rest else []
    text = str(error)
    if not facts:
        return text
    return (
        f"{text.removesuffix('.')}; {'; '.join(facts)}. Run the command again once this is "
        f"settled; {command('status')} shows what is applied where"
    )


def _worked_out(site: Site, work_out: Callable[[Site], Intent]) -> Intent:
    """Compute a transaction.

    :raises TransactionError: also where the system refuses to let the target be looked at, as where
        somebody exchanges a folder for a link meanwhile.
    """
    try:
        return work_out(site)
    except OSError as error:
        raise unwritable(error, "Nothing was changed.") from error


def execute(site: Site, intent: Intent) -> None:
    """Write what was computed; the caller holds the exclusive lock.

    :raises TransactionError: if the operating system refuses; everything is undone then, or the
        message says that it is not.
    """
    root, package, transaction = site.root, site.package, intent.journal()
    try:
        journal.write(root, transaction, site.owner, package)
        _stage(site, intent, transaction)
        recovery.finish(root, transaction, package)
    except OSError as error:
        recovery.settle(root, transaction, package)
        raise unwritable(error, recovery.state(root, transaction, package)) from error
    except BaseException:
        recovery.settle(root, transaction, package)
        raise


def _stage(site: Site, intent: Intent, transaction: Journal) -> None:
    """Write the new bytes of every file beside it, and keep its old bytes there."""
    root, owner = site.root, site.owner
    for folder in intent.added_folders:
        files.make_folder(root, folder, owner)
    # The old bytes first: once all new bytes are staged, the transaction may be finished.
    for write, step in zip(intent.writes, transaction.steps, strict=True):
        if write.before is not None:
            files.keep(root, step.path, step.old, write.before, intent.forms[write.path])
    for write, step in zip(intent.writes, transaction.steps, strict=True):
        if write.after is not None:
            files.create(root, step.new, write.after, intent.forms[write.path])
    recovery.sync(root, transaction)
