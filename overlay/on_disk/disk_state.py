"""Compare a target's files with its ledger: pure, by hashes only.

A plan is made from the pristine text and knows nothing of the ledger; this module provides that
text, and turns the plan's results into the states of the present files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import overlay
from overlay.results import Notice, Reason, State, combine
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature
    from overlay.package import Tree
    from overlay.results import FeatureResult, FileResult, Plan


Reader = Callable[[str], "bytes | None"]


class Condition(Enum):
    """State of a file that the ledger lists, compared with what the overlay wrote."""

    OURS = "as we wrote it"
    PRISTINE = "as it was before us"
    EDITED = "neither"
    GONE = "not there any more"


class PristineView:
    """A target as it was before the overlay; satisfies ``overlay.package.Tree``."""

    def __init__(self, tree: Tree, ledger: Ledger | None, copies: Callable[[str], bytes]) -> None:
        self.tree, self.ledger, self.copies = tree, ledger, copies

    def read(self, path: str) -> bytes | None:
        """The pristine bytes of ``path``; the present ones where it is not as we wrote it.

        :raises LedgerError: if the pristine copy that stands in for it is missing or damaged.
        """
        now = self.tree.read(path)
        entry = self.ledger.entry(path) if self.ledger else None
        if entry is None or condition(entry, now) is not Condition.OURS:
            return now
        return None if entry.before is None else self.copies(entry.before)


def pristine_view(tree: Tree, ledger: Ledger | None, copies: Callable[[str], bytes]) -> Tree:
    """``tree`` as it was before us.

    :param copies: the pristine bytes with a sha256 (``transaction.ledger.copies``).
    """
    return PristineView(tree, ledger, copies)


def condition(entry: Entry, now: bytes | None) -> Condition:
    """Compare the file of ``entry``, which has the bytes ``now``, with its hashes."""
    if now is None:
        return Condition.PRISTINE if entry.before is None else Condition.GONE
    found = sha256(now)
    if found == entry.after:
        return Condition.OURS
    return Condition.PRISTINE if found == entry.before else Condition.EDITED


def conditions(ledger: Ledger, read: Reader) -> dict[str, Condition]:
    """Compare every file that the ledger lists with its entry, by path."""
    return {entry.path: condition(entry, read(entry.path)) for entry in ledger.entries}


def void(ledger: Ledger, found: Mapping[str, Condition], release: str | None) -> str | None:
    """Say why the ledger no longer applies to this vLLM; ``None`` while it does.

    :param release: the installed release; ``None``: not known, judge by the files alone.
    """
    patched = [found[entry.path] for entry in ledger.entries if entry.before is not None]
    basis = patched or list(found.values())
    if basis and all(one is Condition.PRISTINE for one in basis):
        return "its files are the release's own again"
    replaced = release is not None and release != ledger.release
    if replaced and any(one is not Condition.OURS for one in basis):
        return f"vLLM {ledger.release} was replaced by {release}"
    return None


def from_ledger(ledger: Ledger, tree: Tree, release: str | None = None) -> Plan | None:
    """Compute the states of a target from its ledger alone: hashes, no parsing, no matching.

    :param release: the installed release, as far as it is known.
    :returns: ``None`` where the ledger is void, and only a plan can tell.
    """
    from overlay.results import Plan

    found = conditions(ledger, tree.read)
    if void(ledger, found, release) is not None:
        return None
    return Plan(
        features=tuple(_judged(one, ledger, found) for one in ledger.features),
        notices=_by_another_overlay(ledger, ()),
    )


def assess(
    plan: Plan,
    ledger: Ledger | None,
    tree: Tree,
    features: Sequence[Feature],
    release: str | None = None,
) -> Plan:
    """Correct a plan's results by what the ledger says was applied.

    :param plan: made from the pristine view; its changes are kept.
    :param tree: the target as it stands.
    :param features: those that the plan was made from.
    :param release: the installed release, as far as it is known.
    """
    if ledger is None:
        return plan
    found = conditions(ledger, tree.read)
    reason = void(ledger, found, release)
    if reason is not None:
        return plan._replace(notices=(*plan.notices, *_void_notices(ledger, found, reason)))
    known = {one.result.feature: one for one in ledger.applied}
    results = tuple(
        _judged(known.pop(result.feature), ledger, found) if result.feature in known else result
        for result in plan.features
    )
    notices = [*_of_others(plan, found), *_by_another_overlay(ledger, features, plan.features)]
    notices += [
        Notice(
            None,
            f"feature {name} was applied by vllm-overlay {ledger.overlay} and is not among these "
            f"patches: name its folder ({one.origin}) with --patches, or take everything off with "
            "'overlay revert'",
        )
        for name, one in known.items()
    ]
    return plan._replace(features=results, notices=tuple(notices))


def _of_others(plan: Plan, found: Mapping[str, Condition]) -> list[Notice]:
    """A plan's notices, without those of files edited after an apply: their state says more."""
    edited = {path for path, stand in found.items() if stand is Condition.EDITED}
    return [notice for notice in plan.notices if notice.path not in edited]


def _judged(one: LedgerFeature, ledger: Ledger, found: Mapping[str, Condition]) -> FeatureResult:
    """Present state of a feature that the ledger lists."""
    files = tuple(
        _judged_file(file, found[file.path], ledger) if file.path in found else file
        for file in one.result.files
    )
    if one.result.state is not State.APPLIED or files == one.result.files:
        return one.result
    return one.result._replace(files=files, state=combine(file.state for file in files))


def _judged_file(file: FileResult, now: Condition, ledger: Ledger) -> FileResult:
    if now is Condition.OURS:
        return file
    by = f"vllm-overlay {ledger.overlay} applied"
    if now is Condition.PRISTINE:
        hunks = tuple(hunk._replace(state=State.PRISTINE) for hunk in file.hunks)
        reason = Reason(
            f"the release's own bytes stand here again since {by}", "'overlay apply' writes it anew"
        )
        return file._replace(state=State.PRISTINE, hunks=hunks, reason=reason)
    if now is Condition.GONE:
        reason = Reason(f"removed since {by}", "'overlay revert' restores the release's own")
        return file._replace(state=State.MISSING, hunks=(), reason=reason)
    reason = Reason(
        f"{file.path} was edited since {by}: expected the bytes that it wrote",
        "put the edit aside and take it out again, or reinstall vLLM",
    )
    return file._replace(state=State.DRIFTED, hunks=(), reason=reason)


def _void_notices(
    ledger: Ledger, found: Mapping[str, Condition], reason: str
) -> tuple[Notice, ...]:
    said = Notice(
        None,
        f"vllm-overlay {ledger.overlay} had patched vLLM {ledger.release} here, but {reason}: "
        "judged as it stands",
    )
    left = [path for path, stand in found.items() if stand is Condition.OURS]
    if not left:
        return (said,)
    return (
        said,
        Notice(
            None,
            f"left over from that: {', '.join(left)}; 'overlay revert' removes what the overlay "
            "added",
        ),
    )


def _by_another_overlay(
    ledger: Ledger, features: Sequence[Feature], plans: Sequence[FeatureResult] = ()
) -> tuple[Notice, ...]:
    """Notices where another version of the overlay, or of the patches, was applied."""
    planned = {plan.feature: plan.state for plan in plans}
    digests = {feature.id: feature.digest for feature in features}
    notices = []
    for one in ledger.applied:
        name = one.result.feature
        if digests.get(name, one.digest) == one.digest:
            continue
        state = planned.get(name, State.PRISTINE)
        what_next = "'overlay apply' writes it anew from the pristine files"
        if state.needs_attention:
            what_next = f"the present form is {state.value} on this vLLM, so leave it as it is"
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
                "'overlay apply' brings the patches up to date if they differ",
            )
        )
    return tuple(notices)
