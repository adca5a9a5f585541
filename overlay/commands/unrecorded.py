"""Recognise patches that are in a target without a ledger, where RECORD proves them.

A vLLM that was patched with ``overlay diff | git apply``, or whose ``.vllm-overlay`` was lost, has
exactly the bytes that ``apply`` writes.  That is proven by undoing the patches: they are ours
where the result is what RECORD lists, and where planning the features on it gives the bytes that
are there.  Nothing is guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from overlay.errors import LedgerError
from overlay.planning.planner import plan as make_plan
from overlay.planning.scope_cache import Memo
from overlay.results import FeatureResult, Plan, Reason, State
from overlay.results.invocation import command
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.package import Tree
    from overlay.targets.target import Target


class Unrecorded(NamedTuple):
    """Features whose bytes are in a target without a ledger.

    :ivar features: them, in their own order.
    :ivar plan: made from the pristine text; its changes end in the bytes that are there.
    :ivar folders: those that hold added modules and nothing of the release, outermost first.
    :ivar pristine: the target without them.
    """

    features: tuple[Feature, ...]
    plan: Plan
    folders: tuple[str, ...]
    pristine: Tree


def prove(features: Sequence[Feature], target: Target) -> Unrecorded:
    """The features that are in ``target``, worked out from RECORD.

    :param features: those at hand, in their order.
    :raises LedgerError: naming every file of which it cannot be proven what it was.
    """
    from overlay.on_disk.rebuild import Overlaid, rebuild

    package, root = target.package, target.root
    lost = root is not None and os.path.lexists(root / package.state_folder)
    about = target.release, target.record, package
    rebuilt = rebuild(features, target, *about, lost=lost, root=root)
    entries = {entry.path: entry for entry in rebuilt.ledger.entries}
    befores = {
        path: None if entry.before is None else rebuilt.pristine[entry.before]
        for path, entry in entries.items()
    }
    pristine = Overlaid(target, befores)
    candidates = [feature for feature in features if _may_stand(feature, entries, target)]
    plan = make_plan(candidates, pristine, target.release, target.record, Memo())
    present = [
        feature
        for feature, result in zip(candidates, plan.features, strict=True)
        if result.state is State.PRISTINE
    ]
    if len(present) != len(candidates):
        plan = make_plan(present, pristine, target.release, target.record, Memo())
    contents = {change.path: change.after for change in plan.changes}
    differ = sorted(
        path
        for path in {*contents, *entries}
        if contents.get(path, b"") != (target.read(path) or b"")
    )
    if differ or not contents:
        raise LedgerError(
            f"{', '.join(differ) or 'no file'}: expected the bytes that applying these patches "
            "writes, found others. Nothing was changed; name the folder of further patches with "
            f"--patches, or run {command('revert')}, which takes out what it can prove to be the "
            "overlay's"
        )
    return Unrecorded(tuple(present), plan, rebuilt.ledger.folders, pristine)


def is_changed(features: Sequence[Feature], tree: Tree, record: Mapping[str, str]) -> bool:
    """Whether a file that some feature patches or adds is not the release's own.

    :param record: sha256 (hex) of the release's own files by path.
    """
    for feature in features:
        for path in feature.patched_paths & record.keys():
            data = tree.read(path)
            if data is not None and sha256(data) != record[path]:
                return True
        for module in feature.added:
            if module.path not in record and tree.read(module.path) is not None:
                return True
    return False


def _may_stand(feature: Feature, entries: Mapping[str, object], tree: Tree) -> bool:
    """Whether every file of a feature was changed, and its modules are there."""
    modules = (module for module in feature.added if module.path not in entries)
    if any(tree.read(module.path) != module.content for module in modules):
        return False
    topics = [{variant.patch.path for variant in topic.variants} for topic in feature.topics]
    return bool(topics or feature.added) and all(paths & entries.keys() for paths in topics)


def recognise(
    plan: Plan, features: Sequence[Feature], target: Target
) -> tuple[Plan, tuple[str, ...]]:
    """Plan a target without a ledger, and name the features that are proven to be in it.

    :param plan: for the target as it is.
    :returns: the plan, and the ids of the features that are there.
    """
    suspicious = any(
        result.state.needs_attention or (result.state is State.UPSTREAMED and result.files)
        for result in plan.features
    )
    if not suspicious or target.record is None:
        return plan, ()
    try:
        proven = prove(features, target)
    except LedgerError:
        return plan, ()  # the lines are not ours as they are: the plan says how they differ
    proven_results = {result.feature: result for result in proven.plan.features}
    # The others are told by the release's own text: they may share modules with what is there.
    ids = {result.feature for result in plan.features}
    candidates = [feature for feature in features if feature.id in ids]
    pristine_plan = make_plan(candidates, proven.pristine, target.release, target.record, Memo())
    results = tuple(
        _unrecorded(proven_results[result.feature]) if result.feature in proven_results else result
        for result in pristine_plan.features
    )
    ours = {change.path for change in proven.plan.changes}
    notices = tuple(notice for notice in plan.notices if notice.path not in ours)
    return Plan(results, (), notices), tuple(proven_results)


def _unrecorded(result: FeatureResult) -> FeatureResult:
    files = tuple(
        file._replace(
            state=State.APPLIED,
            hunks=tuple(hunk._replace(state=State.APPLIED) for hunk in file.hunks),
        )
        for file in result.files
    )
    reason = Reason(
        "applied without the overlay: RECORD says that its files were edited, they are byte for "
        "byte what the overlay writes, and no ledger says so",
        f"run {command('adopt')} to take them over; then {command('revert')} can take them out",
    )
    return result._replace(state=State.PARTIAL, files=files, reason=reason)
