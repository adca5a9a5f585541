"""Verdicts of the commands that change a target, or print the change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlay.report.codes import Code, Verdict
from overlay.report.model import Pending, TargetReport
from overlay.report.wording import attention, attention_code, nothing_to_patch
from overlay.report.words import count, enumeration, ids, in_states, is_are, vllm, was_were
from overlay.results import Change, FeatureResult, State

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.report.targets import RevertReport

# apply


def not_applied(target: TargetReport) -> Verdict:
    """The verdict of an ``apply`` that something prevents."""
    text = f"Nothing was written to {vllm(target)}: {attention(target)}."
    return Verdict(attention_code(target), text)


def untested_refused(target: TargetReport, features: Sequence[FeatureResult]) -> Verdict:
    """The verdict of an ``apply`` to a release that the patches were not tested on."""
    text = (
        f"Nothing was written: {ids(features)} {was_were(features)} not tested on {vllm(target)}; "
        f"{target.command('apply', '--untested')} applies what matches anyway."
    )
    return Verdict(Code.UNTESTED_REFUSED, text)


def would_apply(target: TargetReport, changes: Sequence[Change]) -> Verdict:
    """The verdict of ``apply --dry-run``."""
    waiting = in_states(target, State.PRISTINE, State.PARTIAL)
    if target.pending is Pending.REMOVE:
        text = (
            f"Nothing was written: apply would remove what an earlier one left in {vllm(target)}."
        )
        return Verdict(Code.LEFTOVERS, text)
    if target.pending is Pending.UPDATE:
        applied_ids = ids(in_states(target, State.APPLIED))
        text = f"Nothing was written: apply would bring {applied_ids} up to date in {vllm(target)}."
        return Verdict(Code.WOULD_APPLY, text)
    if not waiting:
        text = f"Nothing was written, and nothing would be{_settled(target)}."
        return Verdict(_done_already(target), text)
    added = sum(change.before is None for change in changes)
    text = (
        f"Nothing was written: apply would put {ids(waiting)} into {vllm(target)}, "
        f"{count(len(changes) - added, 'file')} patched and {added} added in all."
    )
    return Verdict(Code.WOULD_APPLY, text)


def applied(target: TargetReport, changed: int, *, wrote: bool) -> Verdict:
    """The verdict of an ``apply`` that went through.

    :param changed: files of vLLM that were written or removed.
    """
    if not wrote:
        return Verdict(_done_already(target), f"Nothing to do{_settled(target)}.")
    applied_features = in_states(target, State.APPLIED)
    if not applied_features:
        text = f"Removed all patches from {vllm(target)}: {nothing_to_patch(target)}."
        return Verdict(Code.REMOVED, text)
    written = f", {count(changed, 'file')} written" if changed else ""
    return Verdict(Code.APPLIED, f"Applied {ids(applied_features)} to {vllm(target)}{written}.")


def _done_already(target: TargetReport) -> Code:
    return Code.ALREADY_APPLIED if in_states(target, State.APPLIED) else Code.NOTHING_TO_PATCH


def _settled(target: TargetReport) -> str:
    """Why there is nothing to do in a target; the end of a sentence."""
    if applied_ones := in_states(target, State.APPLIED):
        return f": {ids(applied_ones)} {is_are(applied_ones)} applied to {vllm(target)} already"
    return f" in {vllm(target)}: {nothing_to_patch(target)}"


def required_missing(target: TargetReport, verdict: Verdict) -> Verdict:
    """The verdict of an ``apply`` after which a required feature is not there.

    :param verdict: what the apply did.
    """
    missing = enumeration([obstacle.summary for obstacle in target.obstacles])
    return Verdict(Code.REQUIRED_MISSING, f"{verdict.text} But {missing}.")


# revert, adopt, diff


def reverted(target: TargetReport, restored: int, removed: int, *, wrote: bool) -> Verdict:
    """The verdict of a ``revert`` that went through.

    :param restored: files that have their own bytes again; :param removed: files taken away.
    """
    if not wrote:
        text = f"Nothing to revert: the overlay has changed nothing in {vllm(target)}."
        return Verdict(Code.NOTHING_TO_REVERT, text)
    what = f"took {ids(target.features)} out, " if target.features else ""
    files = f"{count(restored, 'file')} restored and {removed} removed"
    return Verdict(Code.REVERTED, f"Reverted {vllm(target)}: {what}{files}.")


def adopt_first(target: TargetReport) -> Verdict:
    """The verdict of a ``revert`` where patches are that no ledger records."""
    text = (
        f"Nothing was reverted in {vllm(target)}: {attention(target)}; {target.command('adopt')} "
        "takes over what is there, and then a revert can take it out."
    )
    return Verdict(Code.UNRECORDED, text)


def not_reverted(target: TargetReport, paths: Sequence[str]) -> Verdict:
    """The verdict of a ``revert`` that would lose somebody's edits.

    :param paths: the files that were edited since the overlay applied.
    """
    edited = f"{enumeration(paths)} {was_were(paths)} edited since"
    text = f"Nothing was reverted in {vllm(target)}: {edited}."
    return Verdict(Code.REVERT_REFUSED, text)


def also_kept(report: RevertReport, folder: Path) -> Verdict:
    """The verdict of a ``revert`` that has saved the edits as a feature first."""
    text = f"{report.verdict.removesuffix('.')}; the edits are kept in {folder}."
    return Verdict(report.code, text)


def left_as_it_is(report: RevertReport, beside: Sequence[tuple[str, str]], titles: str) -> Verdict:
    """The verdict of a ``revert --keep-as`` beside whose edits there are others.

    :param beside: path and change of each file that no feature carries; not kept, not put back.
    :param titles: the packages that have it.
    """
    files = enumeration([f"{path} ({what})" for path, what in beside])
    text = report.verdict.removesuffix(".")
    text = (
        f"{text}; neither kept nor put back, since no feature carries it: {files}; copy what "
        f"you need of it, and reinstall {titles} for the release's own."
    )
    return Verdict(Code.KEPT_IN_PART, text)


def not_kept(target: TargetReport, why: str) -> Verdict:
    """The verdict of a ``revert --keep-as`` whose edits cannot be a feature.

    :param why: the verdict about that feature.
    """
    return Verdict(Code.REVERT_REFUSED, f"Nothing was reverted in {vllm(target)}: {why}")


def taken_off(
    target: TargetReport, going: Sequence[str], requested: Sequence[str], files: int
) -> Verdict:
    """The verdict of a ``revert --feature`` that went through.

    :param going: ids of what was taken off; :param requested: ids that were to go.
    :param files: files of vLLM that were written or removed.
    """
    if not going:
        names = f"{enumeration(list(requested))} {is_are(requested)}"
        text = f"Nothing to revert: {names} not applied to {vllm(target)}."
        return Verdict(Code.NOTHING_TO_REVERT, text)
    stay = in_states(target, State.APPLIED)
    rest = f"{ids(stay)} {is_are(stay)} left" if stay else "nothing of the overlay is left there"
    what = f"Took {enumeration(list(going))} out of {vllm(target)}"
    return Verdict(Code.REVERTED, f"{what}, {count(files, 'file')} written; {rest}.")


def not_taken_off(target: TargetReport, going: Sequence[str]) -> Verdict:
    """The verdict of a ``revert --feature`` without which the others could not stay."""
    without = f"without {enumeration(list(going))}"
    text = f"Nothing was written to {vllm(target)}: {without}, {attention(target)}."
    return Verdict(Code.REVERT_REFUSED, text)


def adopted(target: TargetReport, *, wrote: bool) -> Verdict:
    """The verdict of an ``adopt`` that went through, or had nothing to do."""
    if target.needs_attention:
        return Verdict(attention_code(target), f"Action needed: {attention(target)}.")
    if not wrote:
        text = f"Nothing to adopt in {vllm(target)}: it has no patches without a ledger."
        return Verdict(Code.NOTHING_TO_ADOPT, text)
    adopted_features = in_states(target, State.APPLIED)
    step = f"{target.command('revert')} can take them out now"
    text = f"Took over {ids(adopted_features)} in {vllm(target)}: {step}."
    return Verdict(Code.ADOPTED, text)


def differs(target: TargetReport, files: int) -> Verdict:
    """The verdict of ``diff``."""
    if needy := attention(target):
        return Verdict(attention_code(target), f"There is no diff for {vllm(target)}: {needy}.")
    if not files:
        text = f"The diff is empty for {vllm(target)}: {nothing_to_patch(target)}."
        return Verdict(Code.EMPTY, text)
    fits = in_states(target, State.PRISTINE)
    text = f"The diff puts {ids(fits)} into {vllm(target)}, {count(files, 'file')} in all."
    return Verdict(Code.DIFFERS, text)
