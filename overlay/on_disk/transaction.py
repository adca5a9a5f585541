"""Apply and revert: all or nothing, under the lock of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from overlay.features.model import Feature
from overlay.on_disk import files, journal, lock, recovery
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.changes import Rebuilt, Request, to_adopt, to_apply, to_revert
from overlay.on_disk.journal import Journal, reading
from overlay.on_disk.site import Site, unwritable
from overlay.on_disk.writes import Intent
from overlay.results import Change, Plan


class Outcome(NamedTuple):
    """What an apply or a revert did.

    :ivar changed: the files of vLLM that were written or removed, as ``vllm/...``, sorted.
    :ivar wrote: whether anything was written.
    """

    action: str
    changed: tuple[str, ...] = ()
    wrote: bool = False
    warnings: tuple[str, ...] = ()


def apply(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    *,
    release: str,
    record_file: Path | None = None,
    basis: str | None = None,
    timeout: float = lock.TIMEOUT,
) -> Outcome:
    """Bring the target in ``root`` to what ``plan`` wants; write nothing where it is so already.

    :param plan: made from the pristine view, needing no attention; what the ledger lists as
        applied and the plan no longer wants is removed.
    :param features: those that the plan was made from.
    :param release: the public version of the vLLM in ``root``.
    :param record_file: RECORD, where one lies beside ``vllm/``.
    :param basis: digest of the ledger that the plan was made from (``ledger.digest``), so that
        nothing is undone that another command has done since; ``None``: any ledger will do.
    :param timeout: seconds to wait for other commands.
    :raises PlanOutdated: if the ledger is another one by now.
    :raises TransactionError: if the target cannot be written, or is no longer as the plan found it;
        it is then in one of its two whole states, or the message says that it is not.
    :raises LedgerError: if the ledger or a pristine copy is damaged.
    :raises ValueError: if the plan needs attention.
    """
    if plan.state.needs_attention:
        raise ValueError(f"a plan that is {plan.state.value} cannot be applied")
    request = Request(plan, tuple(features), release, record_file, basis)
    return _run(root, lambda site: to_apply(site, request), timeout)


def would_apply(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    *,
    release: str,
    record_file: Path | None = None,
    timeout: float = lock.TIMEOUT,
) -> bool:
    """Whether ``apply`` would write anything; nothing is written, and an error is the same error.

    :raises TransactionError: as ``apply``, for what shows without writing.
    """
    with reading(root, timeout):
        site = Site(root.resolve())
        if plan.changes and ledgers.load(site.root) is None:
            # Nothing is applied yet, so everything is written; RECORD need not be parsed for that.
            for change in plan.changes:
                site.real(change.path)
            return True
        request = Request(plan, tuple(features), release, record_file)
        return bool(_worked_out(site, lambda site: to_apply(site, request)).writes)


def revert(
    root: Path,
    *,
    release: str | None = None,
    record_file: Path | None = None,
    rebuild: Callable[[], Rebuilt] | None = None,
    basis: str | None = None,
    edits: Sequence[Change] = (),
    timeout: float = lock.TIMEOUT,
) -> Outcome:
    """Bring the target in ``root`` back to its pristine bytes, and remove all that was added.

    :param release: the public version of the vLLM in ``root``, where it is known.
    :param record_file: RECORD, where one lies beside ``vllm/``; for a ledger that is lost.
    :param rebuild: reconstructs a ledger that is lost (``overlay.on_disk.rebuild.rebuild``).
    :param basis: as for ``apply``: digest of the ledger that is to be reverted.
    :param edits: edited files that are saved elsewhere, from their present bytes to the pristine
        ones, which are put back as well.
    :param timeout: seconds to wait for other commands.
    :raises PlanOutdated: if the ledger is another one by now.
    :raises RevertRefused: if somebody edited a file after the overlay applied; nothing was changed.
    :raises TransactionError: as ``apply``.
    :raises LedgerError: if the ledger or a pristine copy is damaged.
    """

    def compute(site: Site) -> Intent:
        return to_revert(site, release, record_file, rebuild, basis, edits)

    return _run(root, compute, timeout)


def adopt(
    root: Path,
    plan: Plan,
    features: Sequence[Feature],
    folders: Sequence[str],
    *,
    release: str,
    record_file: Path | None = None,
    timeout: float = lock.TIMEOUT,
) -> Outcome:
    """Write the ledger of patches that are in the target already; no file of vLLM changes.

    :param plan: made from the pristine bytes; its changes end in the bytes that are there.
    :param features: those that the plan was made from.
    :param folders: the folders that were made for added modules, outermost first.
    :param release: the public version of the vLLM in ``root``.
    :param record_file: RECORD, where one lies beside ``vllm/``.
    :param timeout: seconds to wait for other commands.
    :raises TransactionError: if a file is not as the plan wants it, or nothing can be written.
    """
    request = Request(plan, tuple(features), release, record_file)
    return _run(root, lambda site: to_adopt(site, request, tuple(folders)), timeout)


def _run(root: Path, work_out: Callable[[Site], Intent], timeout: float) -> Outcome:
    recovered: str | None = None
    with reading(root, timeout):
        site = Site(root)
        unfinished = journal.pending(site.root)
        intent = Intent("") if unfinished else _worked_out(site, work_out)
    if intent.writes or unfinished:
        with lock.exclusive(site.root, timeout):
            # Another command may have died after the shared lock was released.
            recovered = recovery.recover_locked(site.root)
            intent = _worked_out(site, work_out)
            if intent.writes:
                execute(site, intent)
    warnings = (*((recovered,) if recovered else ()), *intent.warnings)
    return Outcome(intent.action, intent.changed, bool(intent.writes), warnings)


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
    """Write ``intent``; the caller holds the exclusive lock.

    :raises TransactionError: if the operating system refuses; everything is undone then, or the
        message says that it is not.
    """
    begun = intent.journal()
    try:
        journal.write(site.root, begun, site.owner)
        _stage(site, intent, begun)
        recovery.finish(site.root, begun)
    except OSError as error:
        _settle(site.root, begun)
        raise unwritable(error, recovery.state(site.root, begun)) from error
    except BaseException:
        _settle(site.root, begun)
        raise


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


def _settle(root: Path, begun: Journal) -> None:
    """End a transaction that failed: undo it where that is possible, else finish it.

    Where that fails, too, the journal remains, and the next command ends the transaction.
    """
    try:
        if not journal.begun(root):
            journal.sweep(root)
        elif recovery.can_undo(root, begun, recovery.survey(root, begun)):
            recovery.undo(root, begun)
        else:
            recovery.finish(root, begun)
    except OSError:
        return
