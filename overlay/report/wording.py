"""Verdicts: what a command concludes, as a code for programs and one sentence for people.

The exit status follows from the code (``Code.exit``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlay.errors import command
from overlay.report.codes import Code, Exit, Verdict
from overlay.report.lines import (
    STOPPED,
    agree,
    count,
    enumeration,
    ids,
    in_states,
    is_are,
    vllm,
    was_were,
)
from overlay.report.model import Pending, TargetFailure, TargetReport
from overlay.report.problems import CLASH, MALFORMED, problems, word
from overlay.results import Change, FeatureResult, State

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.package import Package
    from overlay.report import Report


#: What a feature does in a state that needs the user; what several do.
_NEEDY = {
    State.MISSING: ("misses a file or a scope", "miss a file or a scope"),
    State.AMBIGUOUS: ("is ambiguous", "are ambiguous"),
    State.DRIFTED: ("has drifted", "have drifted"),
    State.PARTIAL: ("is applied in part", "are applied in part"),
}


def attention(target: TargetReport) -> str | None:
    """What needs the user: features in their states, obstacles, an interruption; or ``None``."""
    needy_ids = {name for problem in problems(target) for name in problem.features}
    needy = [feature for feature in target.features if feature.feature in needy_ids]
    parts = []
    clashing = [feature.feature for feature in needy if word(feature) == CLASH]
    if clashing:
        parts.append(f"{enumeration(clashing)} {agree(clashing, 'clashes', 'clash')}")
    malformed = [feature.feature for feature in needy if word(feature) == MALFORMED]
    if malformed:
        parts.append(f"{enumeration(malformed)} {is_are(malformed)} malformed")
    apart = {*target.unrecorded, *clashing, *malformed}
    for state, (singular, plural) in _NEEDY.items():
        if names := [
            feature.feature
            for feature in needy
            if feature.state is state and feature.feature not in apart
        ]:
            parts.append(f"{enumeration(names)} {agree(names, singular, plural)}")
    if unrecorded := target.unrecorded:
        parts.append(f"{enumeration(unrecorded)} {is_are(unrecorded)} patched in without a ledger")
    parts += [obstacle.summary for obstacle in target.obstacles]
    if target.interrupted:
        parts.insert(0, "an apply or revert was interrupted")
    return "; ".join(parts) or None


def attention_code(target: TargetReport) -> Code:
    """The code of a target that needs the user: the cause, where there is just one."""
    if target.interrupted:
        return Code.INTERRUPTED
    codes = {obstacle.code for obstacle in target.obstacles}
    needy = {feature.feature for feature in target.features if feature.state.needs_attention}
    if not codes and needy and needy <= {*target.unrecorded}:
        return Code.UNRECORDED
    if len(codes) == 1 and not target.state.needs_attention:
        return codes.pop()
    mends = target.pending is Pending.COMPLETE
    return Code.APPLY_COMPLETES if mends else Code.NEEDS_ATTENTION


def nothing_to_patch(target: TargetReport) -> str:
    """Why there is nothing to patch in a target to which no feature can be applied."""
    reasons = []
    if upstreamed := in_states(target, State.UPSTREAMED):
        reasons.append(f"it has {ids(upstreamed)} already")
    if outside := in_states(target, State.INAPPLICABLE):
        reasons.append(f"{ids(outside)} {is_are(outside)} not made for it")
    return " and ".join(reasons) or "there are no features"


def _needs_action(target: TargetReport) -> Verdict | None:
    """The verdict of a command that reads a target in which something needs the user."""
    needy = attention(target)
    if needy is None:
        return None
    code = attention_code(target)
    completes = code is Code.APPLY_COMPLETES
    step = f", which {target.command('apply')} completes" if completes else ""
    return Verdict(code, f"Action needed: {needy} on {vllm(target)}{step}.")


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a command on several packages, from that on each."""
    first, *rest = verdicts
    if not rest:
        return first
    needy = [verdict for verdict in verdicts if verdict.code.exit is not Exit.OK]
    codes = {verdict.code for verdict in needy or verdicts}
    code = codes.pop() if len(codes) == 1 else Code.NEEDS_ATTENTION if needy else Code.MIXED
    texts = [first.text.removesuffix(".")]
    texts += [f"{verdict.text[0].lower()}{verdict.text[1:].removesuffix('.')}" for verdict in rest]
    return Verdict(code, f"{'; '.join(texts)}.")


def idle_by_default(target: TargetReport) -> str:
    """Say of required features that the release of a target runs them for no model by default."""
    asks = {} if target.runner is None else target.runner.asks
    variables = enumeration([*dict.fromkeys(asks[name] for name in target.idle)])
    return (
        f"{enumeration(target.idle)} {agree(target.idle, 'does', 'do')} nothing there by default: "
        f"{variables} has to be set where vLLM serves"
    )


def with_idle(target: TargetReport, verdict: Verdict) -> Verdict:
    """A verdict that promises no effect where the release runs what is required for no model."""
    if not target.idle or verdict.code.exit is not Exit.OK:
        return verdict
    text = f"{verdict.text.removesuffix('.')}, but {idle_by_default(target)}."
    return Verdict(verdict.code, text)


# check


def checked(targets: Sequence[TargetReport], failures: Sequence[TargetFailure] = ()) -> Verdict:
    """The verdict of ``check``.

    :param failures: targets that could not be read.
    """
    if failures:
        number, of = len(failures), len(failures) + len(targets)
        if of == 1:
            return Verdict(Code.ENVIRONMENT, f"overlay check {STOPPED}")
        text = f"{number} of {of} targets could not be checked: see the errors."
        return Verdict(Code.ENVIRONMENT, text)
    if len(targets) == 1:
        return _checked_one(targets[0])
    needy = [_place(target, targets) for target in targets if target.needs_attention]
    if needy:
        text = f"Action needed on {len(needy)} of {len(targets)} targets: {enumeration(needy)}."
        return Verdict(Code.NEEDS_ATTENTION, text)
    tally = Counter(target.state.value for target in targets)
    states = enumeration([f"{number} {state}" for state, number in tally.items()])
    codes = {_checked_one(target).code for target in targets}
    code = codes.pop() if len(codes) == 1 else Code.MIXED
    return Verdict(code, f"Nothing needs you on {len(targets)} targets: {states}.")


def _place(target: TargetReport, targets: Sequence[TargetReport]) -> str:
    """What to call one of several targets: by its package where one place holds several."""
    alone = sum(other.target == target.target for other in targets) == 1
    return target.target if alone else vllm(target)


def nothing_new(packages: Sequence[Package]) -> Verdict:
    """The verdict of ``check --releases new`` where there is no such release.

    :param packages: those that were asked about.
    """
    newest = [
        f"{package.title} {package.releases[-1] if package.releases else 'any'}"
        for package in packages
    ]
    text = (
        "Nothing needs you: the package index has no release that is newer than "
        f"{' or '.join(newest)}."
    )
    return Verdict(Code.NOTHING_NEW, text)


def _checked_one(target: TargetReport) -> Verdict:
    if needy := _needs_action(target):
        return needy
    fits = in_states(target, State.PRISTINE)
    if untested := [feature for feature in fits if feature.untested]:
        return Verdict(
            Code.UNTESTED,
            f"{ids(untested)} would fit {vllm(target)}, but {was_were(untested)} not tested there: "
            f"{target.command('apply', '--untested')} applies {agree(untested, 'it', 'them')} "
            "anyway.",
        )
    if fits:
        text = f"Nothing needs you: {ids(fits)} can be applied to {vllm(target)}."
        return Verdict(Code.CAN_BE_APPLIED, text)
    if applied := in_states(target, State.APPLIED):
        text = f"Nothing needs you: {ids(applied)} {is_are(applied)} applied to {vllm(target)}."
        if target.pending is Pending.UPDATE:
            text = f"{text[:-1]}, which {target.command('apply')} brings up to date."
            return Verdict(Code.CAN_BE_UPDATED, text)
        return Verdict(Code.APPLIED, text)
    if target.pending is Pending.REMOVE:
        steps = f"{target.command('apply')} or {target.command('revert')}"
        text = f"{steps} removes what an earlier apply left in {vllm(target)}: "
        text += f"{nothing_to_patch(target)}."
        return Verdict(Code.LEFTOVERS, text)
    text = f"Nothing to patch in {vllm(target)}: {nothing_to_patch(target)}."
    return Verdict(Code.NOTHING_TO_PATCH, text)


# status


def status(target: TargetReport) -> Verdict:
    """The verdict of ``status``."""
    return with_idle(target, _status(target))


def _status(target: TargetReport) -> Verdict:
    if needy := _needs_action(target):
        return needy
    applied, waiting = in_states(target, State.APPLIED), in_states(target, State.PRISTINE)
    if applied and waiting:
        text = (
            f"{ids(applied)} {is_are(applied)} applied to {vllm(target)}; "
            f"{ids(waiting)} {is_are(waiting)} not."
        )
        return Verdict(Code.PARTLY_APPLIED, text)
    if applied:
        return Verdict(Code.APPLIED, f"{ids(applied)} {is_are(applied)} applied to {vllm(target)}.")
    if waiting:
        text = (
            f"Nothing is applied to {vllm(target)}: {target.command('apply')} would apply "
            f"{ids(waiting)}."
        )
        return Verdict(Code.NOT_APPLIED, text)
    text = f"Nothing is applied to {vllm(target)}: {nothing_to_patch(target)}."
    return Verdict(Code.NOTHING_TO_PATCH, text)


def was_interrupted(action: str, root: Path) -> str:
    """The notice of a transaction that was interrupted, with the commands that end it.

    :param action: ``apply`` or ``revert``.
    """
    return (
        f"an interrupted {action} waits to be ended in {root}, and its files are judged as they "
        f"are now: {command('apply')} or {command('revert')} finishes or undoes it first"
    )


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


def also_kept(report: Report, folder: Path) -> Verdict:
    """The verdict of a ``revert`` that has saved the edits as a feature first."""
    text = f"{report.verdict.removesuffix('.')}; the edits are kept in {folder}."
    return Verdict(report.code, text)


def left_as_it_is(report: Report, beside: Sequence[tuple[str, str]], titles: str) -> Verdict:
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
