"""Verdicts: what a command concludes, as a code for programs and one sentence for people.

The exit status follows from the code (``Code.exit``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlay.report.codes import Code, Verdict
from overlay.report.model import CachePart, Pending, RevertReport, TargetFailure, TargetReport
from overlay.report.problems import problems
from overlay.report.words import are, count, enumeration, megabytes, named, those, vllm
from overlay.results import Change, FeatureResult, State

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.processes.live import LiveProcess


#: What a feature does in a state that needs the user; what several do.
_NEEDY = {
    State.MISSING: ("misses a file or a scope", "miss a file or a scope"),
    State.AMBIGUOUS: ("is ambiguous", "are ambiguous"),
    State.DRIFTED: ("has drifted", "have drifted"),
    State.PARTIAL: ("is applied in part", "are applied in part"),
}


def attention(target: TargetReport) -> str | None:
    """What needs the user: features in their states, obstacles, an interruption; or ``None``."""
    told = {name for problem in problems(target) for name in problem.features}
    needy = [feature for feature in target.features if feature.feature in told]
    said = []
    for state, (one, several) in _NEEDY.items():
        if names := [
            feature.feature
            for feature in needy
            if feature.state is state and feature.feature not in target.unrecorded
        ]:
            said.append(f"{enumeration(names)} {one if len(names) == 1 else several}")
    if unrecorded := target.unrecorded:
        are_ = "is" if len(unrecorded) == 1 else "are"
        said.append(f"{enumeration(unrecorded)} {are_} patched in without a ledger")
    said += [obstacle.summary for obstacle in target.obstacles]
    if target.interrupted:
        said.insert(0, "an apply or revert was interrupted")
    return "; ".join(said) or None


def _attention_code(target: TargetReport) -> Code:
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
    if upstreamed := those(target, State.UPSTREAMED):
        reasons.append(f"it has {named(upstreamed)} already")
    if outside := those(target, State.INAPPLICABLE):
        reasons.append(f"{named(outside)} {are(outside)} not made for it")
    return " and ".join(reasons) or "there are no features"


def _settled(target: TargetReport) -> str:
    """Why there is nothing to do in a target; the end of a sentence."""
    if applied_ones := those(target, State.APPLIED):
        return f": {named(applied_ones)} {are(applied_ones)} applied to {vllm(target)} already"
    return f" in {vllm(target)}: {nothing_to_patch(target)}"


def _needs_action(target: TargetReport) -> Verdict | None:
    """The verdict of a command that reads a target in which something needs the user."""
    needy = attention(target)
    if needy is None:
        return None
    code = _attention_code(target)
    step = ", which `overlay apply` completes" if code is Code.APPLY_COMPLETES else ""
    return Verdict(code, f"Action needed: {needy} on {vllm(target)}{step}.")


# check


def checked(targets: Sequence[TargetReport], failures: Sequence[TargetFailure] = ()) -> Verdict:
    """The verdict of ``check``.

    :param failures: targets that could not be read.
    """
    if failures:
        number, of = len(failures), len(failures) + len(targets)
        if of == 1:
            return Verdict(Code.ENVIRONMENT, "overlay check stopped: see the error.")
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


def nothing_new(newest: str, title: str = "vLLM") -> Verdict:
    """The verdict of ``check --releases new`` where there is no such release.

    :param newest: the newest release that this overlay knows; :param title: of what.
    """
    text = (
        f"Nothing needs you: the package index has no release that is newer than {title} {newest}."
    )
    return Verdict(Code.NOTHING_NEW, text)


def _checked_one(target: TargetReport) -> Verdict:
    if needy := _needs_action(target):
        return needy
    fits = those(target, State.PRISTINE)
    if untested := [feature for feature in fits if feature.untested]:
        return Verdict(
            Code.UNTESTED,
            f"{named(untested)} would fit {vllm(target)}, but was not tested there: "
            "pass `--untested` to `overlay apply` to apply it anyway.",
        )
    if fits:
        text = f"Nothing needs you: {named(fits)} can be applied to {vllm(target)}."
        return Verdict(Code.CAN_BE_APPLIED, text)
    if done := those(target, State.APPLIED):
        text = f"Nothing needs you: {named(done)} {are(done)} applied to {vllm(target)}."
        if target.pending is Pending.UPDATE:
            text = f"{text[:-1]}, which `overlay apply` brings up to date."
            return Verdict(Code.CAN_BE_UPDATED, text)
        return Verdict(Code.APPLIED, text)
    if target.pending is Pending.REMOVE:
        text = "`overlay apply` or `overlay revert` removes what an earlier apply left in "
        text += f"{vllm(target)}: {nothing_to_patch(target)}."
        return Verdict(Code.LEFTOVERS, text)
    text = f"Nothing to patch in {vllm(target)}: {nothing_to_patch(target)}."
    return Verdict(Code.NOTHING_TO_PATCH, text)


# status


def standing(target: TargetReport) -> Verdict:
    """The verdict of ``status``."""
    if needy := _needs_action(target):
        return needy
    done, waiting = those(target, State.APPLIED), those(target, State.PRISTINE)
    if done and waiting:
        text = (
            f"{named(done)} {are(done)} applied to {vllm(target)}; "
            f"{named(waiting)} {are(waiting)} not."
        )
        return Verdict(Code.PARTLY_APPLIED, text)
    if done:
        return Verdict(Code.APPLIED, f"{named(done)} {are(done)} applied to {vllm(target)}.")
    if waiting:
        text = (
            f"Nothing is applied to {vllm(target)}: `overlay apply` would apply {named(waiting)}."
        )
        return Verdict(Code.NOT_APPLIED, text)
    text = f"Nothing is applied to {vllm(target)}: {nothing_to_patch(target)}."
    return Verdict(Code.NOTHING_TO_PATCH, text)


def running(processes: Sequence[LiveProcess]) -> Verdict:
    """The verdict of ``status --live``."""
    from overlay.processes.records import PATCHED

    if not processes:
        return Verdict(Code.NOT_RUNNING, "No vLLM of this user is running.")
    needy = [process for process in processes if process.problem is not None]
    engines = len({process.engine for process in processes})
    what = f"{count(len(processes), 'process', 'processes')} of vLLM"
    if needy:
        return Verdict(Code.NEEDS_ATTENTION, f"Action needed on {len(needy)} of {what}.")
    patched = sum(
        process.record is not None and process.record.way in PATCHED for process in processes
    )
    effects = _effects(processes)
    return Verdict(
        Code.RUNNING,
        f"{what} in {count(engines, 'engine')}, {patched} patched, none needs you"
        f"{f'; {effects}' if effects else ''}.",
    )


def _effects(processes: Sequence[LiveProcess]) -> str:
    """Which features are active in any process, and which in none, where they report it."""
    from overlay.processes.records import Effect

    states: dict[str, set[Effect]] = {}
    for process in processes:
        for effect in () if process.record is None else process.record.effects:
            states.setdefault(effect.feature, set()).add(effect.state)
    words = []
    for state in (Effect.ACTIVE, Effect.IDLE):
        names = sorted(
            feature
            for feature, seen in states.items()
            if state in seen and (state is Effect.ACTIVE or Effect.ACTIVE not in seen)
        )
        if names:
            words.append(f"{state.value}: {', '.join(names)}")
    return "; ".join(words)


# apply


def not_applied(target: TargetReport) -> Verdict:
    """The verdict of an ``apply`` that something prevents."""
    text = f"Nothing was written to {vllm(target)}: {attention(target)}."
    return Verdict(_attention_code(target), text)


def untested_refused(target: TargetReport, features: Sequence[FeatureResult]) -> Verdict:
    """The verdict of an ``apply`` to a release that the patches were not tested on."""
    were = "was" if len(features) == 1 else "were"
    text = (
        f"Nothing was written: {named(features)} {were} not tested on {vllm(target)}; "
        "`overlay apply --untested` applies what matches anyway."
    )
    return Verdict(Code.UNTESTED_REFUSED, text)


def would_apply(target: TargetReport, changes: Sequence[Change]) -> Verdict:
    """The verdict of ``apply --dry-run``."""
    waiting = those(target, State.PRISTINE, State.PARTIAL)
    if target.pending is Pending.REMOVE:
        text = (
            f"Nothing was written: apply would remove what an earlier one left in {vllm(target)}."
        )
        return Verdict(Code.LEFTOVERS, text)
    if target.pending is Pending.UPDATE:
        done = named(those(target, State.APPLIED))
        text = f"Nothing was written: apply would bring {done} up to date in {vllm(target)}."
        return Verdict(Code.WOULD_APPLY, text)
    if not waiting:
        text = f"Nothing was written, and nothing would be{_settled(target)}."
        return Verdict(_done_already(target), text)
    added = sum(change.before is None for change in changes)
    text = (
        f"Nothing was written: apply would put {named(waiting)} into {vllm(target)}, "
        f"{count(len(changes) - added, 'file')} patched and {added} added in all."
    )
    return Verdict(Code.WOULD_APPLY, text)


def applied(target: TargetReport, changed: int, *, wrote: bool) -> Verdict:
    """The verdict of an ``apply`` that went through.

    :param changed: files of vLLM that were written or removed.
    """
    if not wrote:
        return Verdict(_done_already(target), f"Nothing to do{_settled(target)}.")
    done = those(target, State.APPLIED)
    if not done:
        text = f"Removed all patches from {vllm(target)}: {nothing_to_patch(target)}."
        return Verdict(Code.REMOVED, text)
    written = f", {count(changed, 'file')} written" if changed else ""
    return Verdict(Code.APPLIED, f"Applied {named(done)} to {vllm(target)}{written}.")


def _done_already(target: TargetReport) -> Code:
    return Code.ALREADY_APPLIED if those(target, State.APPLIED) else Code.NOTHING_TO_PATCH


# revert, diff, list, doctor


def reverted(target: TargetReport, restored: int, removed: int, *, wrote: bool) -> Verdict:
    """The verdict of a ``revert`` that went through.

    :param restored: files that have their own bytes again; :param removed: files taken away.
    """
    if not wrote:
        text = f"Nothing to revert: the overlay has changed nothing in {vllm(target)}."
        return Verdict(Code.NOTHING_TO_REVERT, text)
    what = f"took {named(target.features)} out, " if target.features else ""
    files = f"{count(restored, 'file')} restored and {removed} removed"
    return Verdict(Code.REVERTED, f"Reverted {vllm(target)}: {what}{files}.")


def not_reverted(target: TargetReport, paths: Sequence[str]) -> Verdict:
    """The verdict of a ``revert`` that would lose somebody's edits.

    :param paths: the files that were edited since the overlay applied.
    """
    were = "was" if len(paths) == 1 else "were"
    text = f"Nothing was reverted in {vllm(target)}: {enumeration(paths)} {were} edited since."
    return Verdict(Code.REVERT_REFUSED, text)


def also_kept(report: RevertReport, folder: Path) -> Verdict:
    """The verdict of a ``revert`` that has saved the edits as a feature first."""
    text = f"{report.verdict.removesuffix('.')}; the edits are kept in {folder}."
    return Verdict(report.code, text)


def not_kept(target: TargetReport, why: str) -> Verdict:
    """The verdict of a ``revert --keep-as`` whose edits cannot be a feature.

    :param why: the verdict about that feature.
    """
    return Verdict(Code.REVERT_REFUSED, f"Nothing was reverted in {vllm(target)}: {why}")


def taken_off(
    target: TargetReport, going: Sequence[str], wanted: Sequence[str], files: int
) -> Verdict:
    """The verdict of a ``revert --feature`` that went through.

    :param going: ids of what was taken off; :param wanted: ids that were to go.
    :param files: files of vLLM that were written or removed.
    """
    if not going:
        names = f"{enumeration(list(wanted))} {'is' if len(wanted) == 1 else 'are'}"
        text = f"Nothing to revert: {names} not applied to {vllm(target)}."
        return Verdict(Code.NOTHING_TO_REVERT, text)
    left = those(target, State.APPLIED)
    rest = f"{named(left)} {are(left)} left" if left else "nothing of the overlay is left"
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
        return Verdict(_attention_code(target), f"Action needed: {attention(target)}.")
    if not wrote:
        text = f"Nothing to adopt in {vllm(target)}: it has no patches without a ledger."
        return Verdict(Code.NOTHING_TO_ADOPT, text)
    taken = those(target, State.APPLIED)
    text = f"Took over {named(taken)} in {vllm(target)}: `overlay revert` can take them out now."
    return Verdict(Code.ADOPTED, text)


def differs(target: TargetReport, files: int) -> Verdict:
    """The verdict of ``diff``."""
    if needy := attention(target):
        return Verdict(_attention_code(target), f"There is no diff for {vllm(target)}: {needy}.")
    if not files:
        text = f"The diff is empty for {vllm(target)}: {nothing_to_patch(target)}."
        return Verdict(Code.EMPTY, text)
    fits = those(target, State.PRISTINE)
    text = f"The diff puts {named(fits)} into {vllm(target)}, {count(files, 'file')} in all."
    return Verdict(Code.DIFFERS, text)


def listed(holes: Sequence[tuple[str, str]], features: int, unknown: Sequence[str] = ()) -> Verdict:
    """The verdict of ``list``.

    :param holes: feature and topic of each topic that has holes.
    :param unknown: releases of the index that this overlay does not know.
    """
    if holes:
        names = enumeration([f"{topic} of {feature}" for feature, topic in holes])
        return Verdict(Code.HOLES, f"{count(len(holes), 'topic')} with holes: {names}.")
    if not features:
        return Verdict(Code.LISTED, "There are no features.")
    text = f"{count(features, 'feature')}, no holes."
    if unknown:
        text = (
            f"{text[:-1]}; {enumeration(unknown)} {'is' if len(unknown) == 1 else 'are'} newer "
            "than this overlay: `overlay check --releases new` says what fits."
        )
    return Verdict(Code.LISTED, text)


def cached(folder: Path, parts: Sequence[CachePart], *, cleaned: bool) -> Verdict:
    """The verdict of ``cache``."""
    held = f"{count(sum(part.entries for part in parts), 'entry', 'entries')}"
    held += f", {megabytes(sum(part.size for part in parts))}"
    if cleaned:
        return Verdict(Code.CACHE_CLEANED, f"Removed {held} from {folder}.")
    return Verdict(Code.CACHE, f"The cache in {folder} holds {held}.")


def diagnosed(problems: Sequence[str]) -> Verdict:
    """The verdict of ``doctor``."""
    if problems:
        return Verdict(Code.PROBLEMS, f"{count(len(problems), 'problem')} found.")
    return Verdict(Code.NO_PROBLEM, "No problem found.")


def required_missing(target: TargetReport, done: Verdict) -> Verdict:
    """The verdict of an ``apply`` after which a required feature is not there.

    :param done: what the apply did.
    """
    missing = enumeration([obstacle.summary for obstacle in target.obstacles])
    return Verdict(Code.REQUIRED_MISSING, f"{done.text} But {missing}.")


def was_interrupted(action: str, root: Path) -> str:
    """The notice of a transaction that was interrupted, with the commands that end it.

    :param action: ``apply`` or ``revert``.
    """
    return (
        f"an interrupted {action} waits to be ended in {root}, and its files are judged as they "
        "are now: `overlay apply` or `overlay revert` finishes or undoes it first"
    )
