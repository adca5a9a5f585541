"""Compare a target's files with its ledger: pure, by hashes only.

A plan is made from the pristine text, without the ledger; this module provides that text, and turns
the plan's results into the states of the present files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import overlay
from overlay.errors import command
from overlay.package import paths_in
from overlay.results import Notice, Plan, Reason, State, combine
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature
    from overlay.package import Package, Tree
    from overlay.results import FeatureResult, FileResult


Reader = Callable[[str], "bytes | None"]


def keep_edit(package: Package) -> str:
    """What to do about an edited file of a package: the part of a sentence."""
    return (
        f"run {command('revert', '--keep-as', 'ID')}, which makes a feature of the edit and takes "
        f"everything off, or reinstall {package.title}"
    )


class Condition(Enum):
    """State of a file that the ledger lists, compared with what the overlay wrote."""

    OURS = "as the overlay wrote it"
    PRISTINE = "as it was before"
    EDITED = "neither"
    GONE = "not there"


class PristineView:
    """A target as it was before the overlay; satisfies ``overlay.package.Tree``.

    :param copies: returns the pristine bytes with a sha256 (``ledger.copies``).
    :param release: the installed release, as far as it is known.
    """

    def __init__(
        self,
        tree: Tree,
        ledger: Ledger | None,
        copies: Callable[[str], bytes],
        release: str | None = None,
    ) -> None:
        self.tree, self.ledger, self.copies = tree, ledger, copies
        self._replaced = ledger is not None and was_replaced(ledger, release)

    def read(self, path: str) -> bytes | None:
        """The pristine bytes of ``path``; the present ones where the overlay did not write them.

        :raises LedgerError: if the pristine copy of the file is missing or damaged.
        """
        now = self.tree.read(path)
        entry = self.ledger.entry(path) if self.ledger else None
        if entry is None or condition(entry, now) is not Condition.OURS:
            return now
        if entry.after is None and self._replaced:
            return None  # the release that is here now has no such file, and none was removed
        return None if entry.before is None else self.copies(entry.before)

    def paths(self) -> Sequence[str]:
        """The files of the target, where it can tell them."""
        return paths_in(self.tree)


def was_replaced(ledger: Ledger, release: str | None) -> bool:
    """Whether another release is installed than the one that the ledger is about."""
    return release is not None and release != ledger.release


def condition(entry: Entry, now: bytes | None) -> Condition:
    """Compare the file of ``entry``, which has the bytes ``now``, with its hashes."""
    if now is None and entry.after is None:
        return Condition.OURS
    if now is None:
        return Condition.PRISTINE if entry.before is None else Condition.GONE
    present = sha256(now)
    if present == entry.after:
        return Condition.OURS
    return Condition.PRISTINE if present == entry.before else Condition.EDITED


def conditions(ledger: Ledger, read: Reader) -> dict[str, Condition]:
    """Compare every file that the ledger lists with its entry, by path."""
    return {entry.path: condition(entry, read(entry.path)) for entry in ledger.entries}


def void(ledger: Ledger, present: Mapping[str, Condition], release: str | None) -> str | None:
    """Say why the ledger no longer applies to its package; ``None`` while it does.

    :param present: the condition of every file that the ledger lists.
    :param release: the installed release; ``None``: not known, judge by the files alone.
    """
    patched = [present[entry.path] for entry in ledger.entries if _shows(entry)]
    rest = [present[entry.path] for entry in ledger.entries if entry.after is not None]
    replaced = was_replaced(ledger, release)
    # That a file is not there shows nothing of the release that replaced the one it was removed of.
    basis = patched or rest or ([] if replaced else list(present.values()))
    if basis and all(now is Condition.PRISTINE for now in basis):
        return "its files are the release's own again"
    if replaced and (any(now is not Condition.OURS for now in basis) or (present and not basis)):
        return f"{ledger.package.title} {ledger.release} was replaced by {release}"
    return None


def _shows(entry: Entry) -> bool:
    """Whether a file shows that its package was patched: it was there before, and is."""
    return entry.before is not None and entry.after is not None


def from_ledger(ledger: Ledger, tree: Tree, release: str | None = None) -> Plan | None:
    """Compute the states of a target from its ledger alone: hashes, no parsing, no matching.

    :param release: the installed release, as far as it is known.
    :returns: ``None`` where the ledger is void, and only a plan can tell.
    """
    present = conditions(ledger, tree.read)
    if void(ledger, present, release) is not None:
        return None
    return Plan(
        features=tuple(_judged(entry, ledger, present) for entry in ledger.features),
        notices=_by_another_overlay(ledger, ()),
    )


def assess(
    plan: Plan,
    ledger: Ledger | None,
    tree: Tree,
    features: Sequence[Feature],
    release: str | None = None,
    present: Mapping[str, Condition] | None = None,
) -> Plan:
    """Correct a plan's results by what the ledger says was applied.

    What is applied and not among ``features`` is not in it: the callers report that themselves.

    :param plan: made from the pristine view; its changes are kept.
    :param tree: the target with its present files.
    :param features: those that the plan was made from.
    :param release: the installed release, as far as it is known.
    :param present: the condition of every file that the ledger lists, where the caller knows it.
    """
    if ledger is None:
        return plan
    if present is None:
        present = conditions(ledger, tree.read)
    reason = void(ledger, present, release)
    if reason is not None:
        return plan._replace(notices=(*plan.notices, *_void_notices(ledger, present, reason)))
    applied = {entry.result.feature: entry for entry in ledger.applied}
    results = tuple(
        _judged(applied.pop(result.feature), ledger, present)
        if result.feature in applied
        else result
        for result in plan.features
    )
    notices = [*_of_others(plan, present), *_by_another_overlay(ledger, features, plan.features)]
    return plan._replace(features=results, notices=tuple(notices))


def with_edits(plan: Plan, ledger: Ledger | None, tree: Tree, release: str | None = None) -> Plan:
    """A plan for the pristine text, where what was edited after an apply is judged by the ledger.

    There the pristine text cannot be had: the plan has read the edited one, and speaks of it as of
    a file that somebody else patched.

    :param plan: made from the pristine view; :param tree: the target with its present files.
    :param release: the installed release, as far as it is known.
    """
    if ledger is None:
        return plan
    present = conditions(ledger, tree.read)
    if void(ledger, present, release) is not None:
        return plan
    changed = {path for path, now in present.items() if now in (Condition.EDITED, Condition.GONE)}
    applied = {entry.result.feature: entry for entry in ledger.applied}
    results = tuple(
        _judged(applied[result.feature], ledger, present)
        if result.feature in applied and any(file.path in changed for file in result.files)
        else result
        for result in plan.features
    )
    return plan._replace(features=results, notices=tuple(_of_others(plan, present)))


def _of_others(plan: Plan, present: Mapping[str, Condition]) -> list[Notice]:
    """A plan's notices, without those of files edited after an apply: their state says more."""
    edited = {path for path, now in present.items() if now is Condition.EDITED}
    return [notice for notice in plan.notices if notice.path not in edited]


def _judged(
    entry: LedgerFeature, ledger: Ledger, present: Mapping[str, Condition]
) -> FeatureResult:
    """Present state of a feature that the ledger lists."""
    result = entry.result
    files = tuple(
        _judged_file(file, present[file.path], ledger) if file.path in present else file
        for file in result.files
    )
    if result.state is not State.APPLIED or files == result.files:
        return result
    return result._replace(files=files, state=combine(file.state for file in files))


def _judged_file(file: FileResult, now: Condition, ledger: Ledger) -> FileResult:
    if now is Condition.OURS:
        return file
    by = f"vllm-overlay {ledger.overlay} applied"
    if now is Condition.PRISTINE:
        hunks = tuple(hunk._replace(state=State.PRISTINE) for hunk in file.hunks)
        reason = Reason(
            f"the release's own bytes are here again since {by}",
            f"{command('apply')} writes it again",
        )
        return file._replace(state=State.PRISTINE, hunks=hunks, reason=reason)
    if now is Condition.GONE:
        step = f"{command('revert')} restores the release's own"
        reason = Reason(f"removed since {by}", step)
        return file._replace(state=State.MISSING, hunks=(), reason=reason)
    reason = Reason(
        f"{file.path} was edited since {by}: expected the bytes that it wrote",
        keep_edit(ledger.package),
    )
    return file._replace(state=State.DRIFTED, hunks=(), reason=reason)


def _void_notices(
    ledger: Ledger, present: Mapping[str, Condition], reason: str
) -> tuple[Notice, ...]:
    notice = Notice(
        None,
        f"vllm-overlay {ledger.overlay} had patched {ledger.package.title} {ledger.release} here, "
        f"but {reason}: judged by its present files",
    )
    removed = {entry.path for entry in ledger.entries if entry.after is None}
    ours = [path for path, now in present.items() if now is Condition.OURS and path not in removed]
    if not ours:
        return (notice,)
    return (
        notice,
        Notice(
            None,
            f"left over from that: {', '.join(ours)}; {command('revert')} removes what the overlay "
            "added",
        ),
    )


def _by_another_overlay(
    ledger: Ledger, features: Sequence[Feature], plans: Sequence[FeatureResult] = ()
) -> tuple[Notice, ...]:
    """Notices where another version of the overlay, or of the patches, was applied."""
    states = {plan.feature: plan.state for plan in plans}
    digests = {feature.id: feature.digest for feature in features}
    notices = []
    for entry in ledger.applied:
        name = entry.result.feature
        if digests.get(name, entry.digest) == entry.digest:
            continue
        state = states.get(name, State.PRISTINE)
        what_next = f"{command('apply')} writes it again from the pristine files"
        if state.needs_attention:
            what_next = f"the present form is {state.value} here, so leave it as it is"
        notices.append(
            Notice(
                None,
                f"feature {name} was applied in another form, by vllm-overlay {ledger.overlay}; "
                f"{what_next}",
            )
        )
    if not features and ledger.overlay != overlay.__version__:
        notices.append(
            Notice(
                None,
                f"applied by vllm-overlay {ledger.overlay}, this is {overlay.__version__}; "
                f"{command('apply')} brings the patches up to date if they differ",
            )
        )
    return tuple(notices)
