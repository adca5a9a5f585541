"""Lay out a release's files for an edit session: with a feature, and those before it, applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from overlay._features.model import Feature, Topic, Variant, paths_of
from overlay.errors import UsageError
from overlay.package import VLLM, Package, Tree
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.results import FeatureResult, State
from overlay.results.invocation import command


@dataclass(frozen=True)
class Layout:
    """The files of a session.

    :ivar base: path -> the text with the features before applied; of files of the release only.
    :ivar texts: path -> the text with the feature applied, too.
    :ivar below: the features before it whose text that is, in order.
    :ivar without: ids of features before it that touch these files, and do not fit the release or
        change the same lines.
    """

    base: Mapping[str, bytes]
    texts: Mapping[str, bytes]
    below: tuple[Feature, ...]
    without: tuple[str, ...] = ()


def lay_out(
    feature: Feature | None,
    earlier: Sequence[Feature],
    tree: Tree,
    release: Version,
    more: Sequence[str] = (),
    syntax: Syntax | None = None,
    package: Package = VLLM,
) -> Layout:
    """The files that a session lays out to edit a feature.

    :param feature: ``None`` for one that is not there yet.
    :param earlier: the features before it, in order; those that do not fit the release, or not
        beside it, are left out.
    :param tree: the release's files; :param more: further files of it.
    """
    syntax = syntax or Syntax()
    own = () if feature is None else (feature,)
    for each in own:
        if shared := [path for path in more if path in each.shared]:
            raise UsageError(not_its_own(each, shared[0]))
    paths = {path for each in own for path in _paths(each, release)} | {*more}
    touching = [each for each in earlier if paths.intersection(paths_of([each]))]
    below: list[Feature] = []
    whole = plan(own, tree, release, syntax=syntax)
    for result in whole.features:
        if result.state is not State.PRISTINE:
            raise UsageError(not_there(result, release, package))
    for each in touching:
        trial = plan([*below, each, *own], tree, release, syntax=syntax)
        if not trial.state.needs_attention:
            below.append(each)
            whole = trial
    under = {
        change.path: change.after for change in plan(below, tree, release, syntax=syntax).changes
    }
    over = {change.path: change.after for change in whole.changes}
    added = {file.path for each in own for file in each.added}
    base: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    for path in sorted(paths):
        before = under.get(path, tree.read(path))
        now = over.get(path, before)
        if now is None and path in over and path not in more:
            continue  # the feature removes it: that stays as it is
        if now is None:
            raise UsageError(
                f"{path}: {package.title} {release} has no such file, so it cannot be edited"
            )
        texts[path] = now
        if before is not None and path not in added:
            base[path] = before
    without = tuple(each.id for each in touching if each not in below)
    return Layout(base, texts, tuple(below), without)


def _paths(feature: Feature, release: Version) -> set[str]:
    """The files that a feature patches in a release, and those that it adds from its own folder."""
    patched = {variant.patch.path for _, variant in variants(feature, release)}
    return patched | {added.path for added in feature.added} - {*feature.shared}


def not_its_own(feature: Feature, path: str) -> str:
    """Why a shared module is not edited as one feature's."""
    return (
        f"{path} is not {feature.id}'s own: every feature that names it in `shared` adds "
        f"{feature.file_of(path)} of {feature.origin}. Edit that file itself"
    )


def variants(feature: Feature, release: Version) -> list[tuple[Topic, Variant]]:
    """Each topic with its variant for a release, in the order in which they are applied."""
    return [
        (topic, variant)
        for topic in feature.topics
        for variant in topic.variants
        if release in variant.releases
    ]


def not_there(result: FeatureResult, release: Version, package: Package = VLLM) -> str:
    """Why a feature cannot be edited on a release."""
    reasons = [
        str(reason)
        for reason in (
            result.reason,
            *(file.reason for file in result.files),
            *(hunk.reason for file in result.files for hunk in file.hunks),
        )
        if reason is not None
    ]
    why = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
    carries = f"{command('port', result.feature, '--releases', str(release))} carries it there, "
    if result.state is State.UPSTREAMED:
        carries = ""  # there is nothing to carry
    return (
        f"{result.feature} is {result.state.value} on {package.title} {release}{why}: expected a "
        f"release to which it applies. {carries}{command('log', result.feature)} lists where it is"
    )
