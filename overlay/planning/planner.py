"""Plan features against a pristine tree: every state, and the changes that applying would make.

Nothing is written here and nothing of the tree is run.  The features are taken in order, each on
the text that the ones before left, so that the plan is what would be on disk.  What one patch does
to one text is ``attempt``'s part; the sequence and its clashes are this module's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from packaging.version import Version

from overlay._features.model import AddedFile, Feature, Hunk, Patch, PortedWay, Topic, Variant
from overlay.errors import FileNotKept
from overlay.package import ReleaseRange, Tree, hiding, is_module
from overlay.planning import advice
from overlay.planning.attempt import Attempt, Judged, attempt
from overlay.planning.beside import Neighbourhood, beside, place_without
from overlay.planning.matching import edits
from overlay.planning.moved import placed
from overlay.planning.patched_tree import (
    Layer,
    Met,
    PatchedTree,
    hidden_modules,
    importers_of_removed,
)
from overlay.planning.provenance import Provenance
from overlay.planning.scopes import Syntax
from overlay.planning.telling import REVIEW
from overlay.planning.text import Edit
from overlay.planning.upstream import (
    Evidence,
    ScopeLines,
    build_of,
    by_distance,
    evidence,
    hunk_is_upstream,
    module_in,
    obsolete_by,
)
from overlay.results import (
    Change,
    Clash,
    FeatureResult,
    FileResult,
    HunkResult,
    Plan,
    Reason,
    State,
    Unusable,
    combine,
    file_state,
)


def plan(
    features: Sequence[Feature],
    pristine: Tree,
    release: Version | None,
    record: Mapping[str, str] | None = None,
    syntax: Syntax | None = None,
) -> Plan:
    """Plan features on a tree: the state of each, and the changes that applying them makes.

    :param features: in the order in which they are applied.
    :param pristine: the tree without our patches; the caller puts pristine copies in the
        place of patched files, so that no result is ``applied``.
    :param release: the tree's release; ``None`` where it is not known.
    :param record: sha256 (hex) of the release's own files by path, where it has a RECORD.
    :param syntax: answers about texts; default: worked out here.
    :returns: a plan whose ``changes`` are empty unless no feature needs attention.
    """
    tree = PatchedTree(pristine, syntax or Syntax())
    planner = _Planner(tree, release, Provenance(tree.pristine_files, record), record)
    for feature in features:
        planner.add(feature)
    return planner.finish()


class Stack(NamedTuple):
    """Features on a release, as a check has them, without those that somebody has to look at."""

    planner: _Planner

    @property
    def features(self) -> tuple[Feature, ...]:
        """In order; the owners of a file's lines are places in it."""
        return tuple(draft.feature for draft in self.planner.drafts)

    @property
    def tree(self) -> PatchedTree:
        """The files with them."""
        return self.planner.tree

    def add(self, features: Sequence[Feature]) -> Stack:
        """The same with more of them: each that does not fit, or clashes, is left out."""
        for feature in features:
            self.planner.try_to_add(feature)
        return self

    def ids_near(self, path: str, edits: Sequence[Edit]) -> set[str]:
        """The ids of the features on whose changes edits of a file are made."""
        layers = self.tree.layers.get(path, [])
        if not layers:
            return set()
        if any(layer.whole for layer in layers):
            return {self.features[layer.feature].id for layer in layers}
        owners = set(self.tree.weave(path).needed_by(edits))
        if self.tree.pristine(path) is None:
            owners.add(layers[0].feature)
        return {self.features[owner].id for owner in owners}


def lay(
    features: Sequence[Feature],
    pristine: Tree,
    release: Version | None,
    record: Mapping[str, str] | None = None,
    syntax: Syntax | None = None,
) -> Stack:
    """Lay features on a tree, modules that they add too; the arguments are those of ``plan``.

    One that does not fit, or clashes with one before it, is left out, and makes no other drift.
    """
    tree = PatchedTree(pristine, syntax or Syntax())
    planner = _Planner(tree, release, Provenance(tree.pristine_files, record), record)
    return Stack(planner).add(features)


def below(release: Version, releases: ReleaseRange) -> bool:
    """Whether a release is below a range; a pre- or dev-release counts as what it leads to."""
    return max(release, Version(release.base_version)) < releases.first


@dataclass
class _Draft:
    """A feature's result while it is put together."""

    feature: Feature
    files: list[FileResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    untested: bool = False
    state: State | None = None
    next_step: str | None = None
    upstream: Evidence | None = None

    def result(self) -> FeatureResult:
        state = combine(file.state for file in self.files) if self.state is None else self.state
        kind = Unusable if self.feature.malformed else Reason
        reason = kind("; ".join(self.notes), self.next_step) if self.notes else None
        return FeatureResult(self.feature.id, state, tuple(self.files), reason, self.untested)


class _Planner:
    def __init__(
        self,
        tree: PatchedTree,
        release: Version | None,
        provenance: Provenance,
        record: Mapping[str, str] | None,
    ) -> None:
        self.tree, self.release, self.provenance = tree, release, provenance
        self.record = record
        self.texts = tree.texts
        self.drafts: list[_Draft] = []

    def add(self, feature: Feature) -> None:
        """Plan one more feature on what the ones before left."""
        draft = _Draft(feature)
        self.drafts.append(draft)
        if feature.malformed:
            draft.state = State.DRIFTED
            draft.notes.append(f"{feature.title}: {'; '.join(feature.malformed)}")
            draft.next_step = advice.for_malformed(feature)
        elif self.release is not None and below(self.release, feature.releases):
            draft.state = State.INAPPLICABLE
            draft.notes.append(f"{self.release} is below its range, {feature.releases}")
        elif (build := build_of(feature, self._scope_lines)) is not None:
            draft.state = State.INAPPLICABLE
            draft.notes.append(build)
        elif (upstream := evidence(feature, self.release, self._telling(feature))).merged:
            draft.state = State.UPSTREAMED
            draft.notes.append(f"the release has it: {upstream.text}")
        elif obsolete_note := obsolete_by(feature, self.release, self.tree.pristine, self.record):
            draft.state = State.INAPPLICABLE
            draft.notes.append(obsolete_note)
        elif not feature.topics and not feature.added:
            self._report_missing_upstream(draft, upstream)
        else:
            draft.upstream = upstream
            self._note_untested(draft)
            taken_over = [(topic, self._upstreams(feature, topic)) for topic in feature.topics]
            if feature.topics and all(why for _, why in taken_over):
                # Nothing of the release would call the feature's modules, so they are left out.
                draft.state = State.UPSTREAMED
            for added in feature.added if draft.state is None else ():
                self._add_module(draft, added)
            for topic, why in taken_over:
                if why:
                    draft.notes.append(self._taken_over(topic, why))
                else:
                    self._add_topic(draft, topic)

    def try_to_add(self, feature: Feature) -> None:
        """Plan one more feature, and take it out again if it needs attention."""
        files = [list(draft.files) for draft in self.drafts]
        self.add(feature)
        draft = self.drafts[-1]
        self._note_partly(draft)
        if draft.result().state.needs_attention:
            self.tree.drop(self._number)
            self.drafts.pop()
            for earlier, results in zip(self.drafts, files, strict=True):
                earlier.files = results

    def finish(self) -> Plan:
        """The plan of all that was added."""
        self._compile()
        for draft in self.drafts:
            self._note_taken(draft)
            self._note_partly(draft)
        results = tuple(draft.result() for draft in self.drafts)
        of_features = [notice for draft in self.drafts for notice in draft.feature.notices]
        of_modules = (*importers_of_removed(self.tree), *hidden_modules(self.tree))
        notices = (*of_features, *self.provenance.notices(), *of_modules)
        if any(result.state.needs_attention for result in results):
            return Plan(results, (), notices)
        changes = tuple(
            Change(path, self.tree.pristine(path), self.tree.current(path))
            for path in sorted(self.tree.layers)
        )
        return Plan(results, tuple(c for c in changes if c.before != c.after), notices)

    # Upstream

    def _scope_lines(self, path: str, scope: str) -> list[Sequence[str]]:
        """The lines of each place that a scope has in the release's own file."""
        self.provenance.use(path)
        return self.tree.scope_lines(path, scope)

    def _telling(self, feature: Feature) -> ScopeLines:
        """The lines that may show that the release has a feature."""
        return self.provenance.telling(feature, self.release, self._scope_lines)

    def _note_taken(self, draft: _Draft) -> None:
        """Say how many hunks of a feature the release has, where it has some of them."""
        hunks = [hunk for file in draft.files for hunk in file.hunks]
        theirs = sum(hunk.state is State.UPSTREAMED for hunk in hunks)
        if not 0 < theirs < len(hunks):
            return
        share = f"upstream took {theirs} of {len(hunks)} hunks"
        draft.notes.append(share)
        next_step = advice.for_part(draft.feature, self.release)
        reason = Reason(f"the release has a part of the change: {share}", next_step)
        draft.files = [
            file._replace(reason=reason)
            if file.state is State.PARTIAL and file.reason is None
            else file
            for file in draft.files
        ]
        draft.next_step = next_step

    def _note_partly(self, draft: _Draft) -> None:
        """Ask about a feature whose patches fit although much of its change is there."""
        upstream = draft.upstream
        if upstream is None or not upstream.partly or draft.state is not None:
            return
        state = draft.result().state
        if state is State.PRISTINE:
            draft.state = State.PARTIAL
        elif not state.needs_attention:
            return
        draft.notes.append(upstream.text)
        draft.next_step = draft.next_step or advice.for_review(draft.feature, self.release)

    def _report_missing_upstream(self, draft: _Draft, upstream: Evidence) -> None:
        """Give a feature without patches the places where the release should have it."""
        feature = draft.feature
        draft.state = State.DRIFTED
        reason = Reason(
            "it carries no patch, and the release does not have it: expected "
            f"{upstream.text or feature.title}; found no such text there"
        )
        for test in feature.upstream_tests:
            alone = replace(feature, merged=None, upstream_tests=(test,))
            if not evidence(alone, None, self._scope_lines).merged:
                hunk = HunkResult(test.scope, State.DRIFTED, reason=reason)
                draft.files.append(FileResult(test.path, State.DRIFTED, None, (hunk,)))
        if not draft.files:
            draft.notes.append(reason.text)

    # Added modules

    def _add_module(self, draft: _Draft, added: AddedFile) -> None:
        path = added.path
        self.provenance.use(path)
        before, now = self.tree.pristine(path), self.tree.current(path)
        result, after = FileResult(path, State.PRISTINE), None
        problem = self._compile_error(added.content, path)
        if problem is not None:
            text = f"the added module does not compile: {problem}"
            result = _drifted(path, Reason(text, advice.for_module(draft.feature, path)))
        elif before is not None and not (upstream := module_in(added, before)).merged:
            text = "expected no such file, found another one of that name; it is not overwritten"
            reason = Reason(text, advice.for_taken_name(draft.feature, path))
            if upstream.partly:
                review = advice.for_review(draft.feature, self.release)
                reason = Reason(f"{text} ({upstream.text})", review)
            result = _drifted(path, reason)
        elif is_module(path) and before is None and self.tree.pristine(hiding(path)) is not None:
            text = f"expected no package of that name, found {hiding(path)}: Python imports that"
            result = _drifted(path, Reason(text, advice.for_taken_name(draft.feature, path)))
        elif before is not None:
            same = before == added.content
            result = FileResult(
                path, State.UPSTREAMED, reason=None if same else Reason(upstream.text)
            )
            if self.provenance.foreign(path) is not None:
                result = _drifted(path, advice.unrecorded(draft.feature.package))
        elif now is not None and self.tree.layers[path][0].after != added.content:
            layer = self.tree.layers[path][0]
            result = self._clash(layer, path, self._clash_reason(layer, draft))
        elif now is not None:
            # An earlier feature adds the same bytes: features may share a module.
            result = FileResult(path, State.PRISTINE)
        else:
            after = added.content
        label = draft.feature.file_of(path).removeprefix(f"{draft.feature.id}/")
        self._keep(draft, label, Attempt(result, after))

    # Topics

    def _add_topic(self, draft: _Draft, topic: Topic) -> None:
        nearest = self._nearest(topic)
        if self.release is not None and self.release in nearest.releases:
            candidate, clashes = self._attempt(draft, nearest.patch)
        else:
            if self.release is not None and self.release in draft.feature.releases:
                note = f"{topic.name} has no variant for {self.release}"
                draft.notes.append(f"{note}; untested, judged by content")
                draft.untested = True
            candidate, clashes = self._best(draft, topic)
        self.provenance.use(candidate.result.path)
        for layer, reason in clashes:
            self._clash(layer, candidate.result.path, reason)
        candidate = placed(candidate, nearest.patch, self.tree.pristine_files, self.texts)
        self._keep(draft, candidate.result.patch or "", candidate)

    def _taken_over(self, topic: Topic, why: str) -> str:
        """What is noted of a topic of which nothing is applied.

        :param why: what shows it, as ``_upstreams`` gives it.
        """
        if self._nearest(topic).patch.ported is PortedWay.NOT_NEEDED:
            return f"{topic.name} is not needed in this release ({why})"
        return f"upstream has {topic.name} ({why})"

    def _upstreams(self, feature: Feature, topic: Topic) -> str | None:
        """What shows that the release has a topic, or a port has found; ``None``: nothing does."""
        patch = self._nearest(topic).patch
        if patch.retired:
            return patch.name
        if not topic.upstream_tests:
            return None
        alone = replace(feature, merged=None, upstream_tests=topic.upstream_tests, topics=(topic,))
        upstream = evidence(alone, self.release, self._telling(alone))
        return upstream.text if upstream.merged else None

    def _nearest(self, topic: Topic) -> Variant:
        """The variant for the release, or else the one whose range is nearest to it."""
        return by_distance(topic.variants, self.release)[0]

    def _note_untested(self, draft: _Draft) -> None:
        """Note a release that is in no range: the feature was not tested there."""
        release, releases = self.release, draft.feature.releases
        if release is not None and release in releases:
            return
        if release is None:
            why = f"the release of this {draft.feature.package.title} is not known"
        elif release.is_prerelease:
            why = f"{release} is not a final release, so it is in no range"
        else:
            why = f"{release} is newer than its range, {releases}"
        draft.untested = True
        draft.notes.append(f"{why}; untested, judged by content")

    def _best(self, draft: _Draft, topic: Topic) -> tuple[Attempt, list[Met]]:
        """The variant that fits: all of it pristine, all of it there, or the nearest."""
        variants = by_distance(topic.variants, self.release)
        attempts = [self._attempt(draft, v.patch) for v in variants if not v.patch.retired]
        order = {State.PRISTINE: 0, State.UPSTREAMED: 1}

        def misfit(tried: tuple[Attempt, list[Met]]) -> tuple[int, int]:
            result = tried[0].result
            wrong = sum(hunk.state.needs_attention for hunk in result.hunks)
            return order.get(result.state, 2), wrong

        return min(attempts, key=misfit)

    def _attempt(self, draft: _Draft, patch: Patch) -> tuple[Attempt, list[Met]]:
        """Try a patch on its file as it is now; nothing is kept.

        :returns: the attempt, and the layers that it clashes with.
        """
        clashes: list[Met] = []

        def judge(hunk: Hunk, data: bytes | None) -> Judged:
            judged = self._judge(draft, patch, hunk, data, clashes)
            result = self._advised(draft.feature, patch, hunk, data, judged.result)
            return judged._replace(result=result)

        missing_step = advice.for_missing_file(draft.feature, patch, self.release)
        try:
            data = self.tree.current(patch.path)
        except FileNotKept as error:
            reason = Reason(str(error))
            hunks = tuple(HunkResult(h.scope, State.DRIFTED, reason=reason) for h in patch.hunks)
            return Attempt(FileResult(patch.path, State.DRIFTED, patch.name, hunks, reason)), []
        if data is None and patch.path in self.tree.layers:
            # An earlier feature removes the file: whoever changes it meets that on its lines.
            hunks = tuple(judge(hunk, data).result for hunk in patch.hunks)
            return Attempt(FileResult(patch.path, file_state(hunks), patch.name, hunks)), clashes
        return attempt(patch, data, self.texts, judge, missing_step), clashes

    def _judge(
        self, draft: _Draft, patch: Patch, hunk: Hunk, data: bytes | None, clashes: list[Met]
    ) -> Judged:
        """The state of one hunk, the release's own text and earlier layers told apart."""
        reason: Reason
        upstream = hunk_is_upstream(hunk, self.tree.places(patch.path, hunk.scope), patch.hunks)
        if upstream.merged and self.provenance.foreign(patch.path) is None:
            line = self.texts.match(hunk, data).line
            return Judged(HunkResult(hunk.scope, State.UPSTREAMED, line, Reason(upstream.text)))
        now = self.texts.match(hunk, data)
        layers = self.tree.layers.get(patch.path, [])
        apart = hunk.whole is None and not any(layer.whole for layer in layers)
        if not apart and now.state is State.PRISTINE:
            return Judged(now)
        if hunk.whole is not None and self._is_lost(patch.path):
            reason = advice.lost(draft.feature.package)
            return Judged(HunkResult(hunk.scope, State.MISSING, reason=reason))
        if now.state is State.PRISTINE:
            return self._in_one_place(draft, patch, hunk, now, clashes) if layers else Judged(now)
        before = self.texts.match(hunk, self.tree.pristine(patch.path)) if layers else now
        if before.state is State.UPSTREAMED:
            if self.provenance.foreign(patch.path) is None:
                return Judged(before)
            reason = advice.unrecorded(draft.feature.package)
            return Judged(before._replace(state=State.DRIFTED, reason=reason))
        near = Neighbourhood()
        if layers and apart:
            near = beside(hunk, patch.path, self._number, self.tree)
        landing, met = near
        if landing is not None:
            return landing
        if met:
            layer = next(layer for layer in layers if layer.feature in met)
        elif before.state is State.PRISTINE or now.state is State.UPSTREAMED:
            layer = next(
                s for s in layers if self.texts.match(hunk, s.after).state is not before.state
            )
        else:
            return Judged(now)
        lines = range(before.line or 0, (before.line or 0) + len(hunk.pre))
        other = self.tree.place(layer, self.drafts[layer.feature].feature, patch.path, lines)
        reason = self._clash_reason(layer, draft, f"{patch.name}:{hunk.patch_line}", other)
        clashes.append((layer, reason))
        return Judged(HunkResult(hunk.scope, State.DRIFTED, before.line, reason))

    def _in_one_place(
        self, draft: _Draft, patch: Patch, hunk: Hunk, now: HunkResult, clashes: list[Met]
    ) -> Judged:
        """A hunk that lands on earlier layers, unless without them it lands at another line.

        An earlier feature may put the lines in again that a hunk is to change, and edit what lies
        around those that it was made on: then nothing tells which it means.
        """
        at = (now.line or 1) - 1
        if self.tree.untouched(patch.path, range(at, at + len(hunk.pre))):
            return Judged(now)  # so it stands there without them, too
        weave = self.tree.weave(patch.path)
        place = place_without(hunk, patch.path, weave.all_but(self._number), self.tree)
        here = edits(hunk, at)
        if place is None or place.carried.met or place.carried.edits == here:
            return Judged(now)
        near = weave.near(here)
        layers = self.tree.layers[patch.path]
        layer = next((layer for layer in layers if layer.feature in near), layers[-1])
        first = self.drafts[layer.feature].feature.id
        own = f"{patch.name}:{hunk.patch_line}"
        reason = advice.two_places(first, layer.label, draft.feature.id, own)
        clashes.append((layer, reason))
        return Judged(HunkResult(hunk.scope, State.DRIFTED, place.result.line, reason))

    @property
    def _number(self) -> int:
        """The number of the feature that is planned."""
        return len(self.drafts) - 1

    def _advised(
        self, feature: Feature, patch: Patch, hunk: Hunk, data: bytes | None, result: HunkResult
    ) -> HunkResult:
        """A hunk's result with what to do, where it does not say so yet."""
        reason = result.reason
        if not result.state.needs_attention or reason is None:
            return result
        if reason.next_step == REVIEW:
            review = advice.for_review(feature, self.release)
            return result._replace(reason=reason._replace(next_step=review))
        if reason.next_step is not None:
            return result
        next_step = advice.for_hunk(
            feature,
            patch,
            hunk,
            result.state,
            misplaced=data is not None and self.texts.misplaced(hunk, data),
            original=self.provenance.original(patch.path),
            release=self.release,
            less=None if feature.shipped or data is None else self.texts.less(hunk, data),
        )
        return result._replace(reason=reason._replace(next_step=next_step))

    def _is_lost(self, path: str) -> bool:
        """Whether a file is not there although the release's own RECORD lists it."""
        return path in (self.record or ()) and self.tree.pristine(path) is None

    # Keeping

    def _keep(self, draft: _Draft, label: str, attempt: Attempt) -> None:
        draft.files.append(attempt.result)
        if attempt.after is not None or attempt.removes:
            file = len(draft.files) - 1
            # An added file has no hunks; only a whole file has a hunk without edits.
            whole = bool(attempt.result.hunks) and not attempt.edits
            layer = Layer(self._number, file, label, attempt.after, attempt.edits, whole)
            self.tree.layers.setdefault(attempt.result.path, []).append(layer)

    def _clash_reason(self, layer: Layer, draft: _Draft, mine: str = "", other: str = "") -> Clash:
        """Why an earlier layer and a feature's patch are not applied together, each named."""
        first = self.drafts[layer.feature].feature.id
        return advice.clash(first, other or layer.label, draft.feature.id, mine)

    def _clash(self, layer: Layer, path: str, reason: Reason) -> FileResult:
        """Refuse the earlier layer too; gives the later one's result."""
        files = self.drafts[layer.feature].files
        earlier = files[layer.file]
        if not earlier.state.needs_attention:
            files[layer.file] = earlier._replace(state=State.DRIFTED, reason=reason)
        return _drifted(path, reason)

    def _compile(self) -> None:
        """Refuse the first layer of each file whose result does not compile."""
        for path, layers in self.tree.layers.items():
            if self._compile_error(layers[-1].after, path) is None:
                continue
            for layer in layers:
                problem = self._compile_error(layer.after, path)
                if problem is not None:
                    draft = self.drafts[layer.feature]
                    text = f"the patched file does not compile: {problem}"
                    reason = Reason(text, advice.for_result(draft.feature, layer.label))
                    broken = draft.files[layer.file]
                    draft.files[layer.file] = broken._replace(state=State.DRIFTED, reason=reason)
                    break

    def _compile_error(self, data: bytes | None, path: str) -> str | None:
        """Why the bytes of a module do not compile; ``None`` where they do, and of data files."""
        return None if data is None else self.texts.syntax.module_error(data, path)


def _drifted(path: str, reason: Reason) -> FileResult:
    return FileResult(path, State.DRIFTED, None, (), reason)
