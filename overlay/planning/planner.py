"""Features against a pristine tree: every state, and the changes that applying would make.

Nothing is written here and nothing of the tree is run.  The features are taken in order on the
text that the ones before left, so that what is planned is what would stand on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from overlay.features.model import AddedFile, Feature, Hunk, Patch, Topic, Variant
from overlay.package import ReleaseRange, Tree
from overlay.planning.attempt import Simulation, Step
from overlay.planning.matching import edits, final_newline_after
from overlay.planning.provenance import Provenance
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.text import TextError
from overlay.planning.upstream import evidence
from overlay.results import (
    Change,
    FeatureResult,
    FileResult,
    HunkResult,
    Plan,
    Reason,
    State,
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
    """How the features stand in a tree, and what applying them would change.

    :param features: in the order in which they are applied.
    :param pristine: the tree without our patches; whoever calls stands backups in for patched
        files, so that no result is ``applied``.
    :param release: the tree's release; ``None`` where it cannot be told.
    :param record: sha256 (hex) of the release's own files by path, where it has a RECORD.
    :param syntax: answers about texts, if they are remembered from elsewhere.
    :returns: a plan whose ``changes`` are empty unless no feature needs attention.
    """
    planner = _Planner(
        Simulation(pristine, syntax or Syntax()), release, Provenance(pristine, record)
    )
    for feature in features:
        planner.add(feature)
    return planner.finish()


def below(release: Version, releases: ReleaseRange) -> bool:
    """Whether a release lies below a range; a pre- or dev-release counts as what it leads to."""
    return Version(release.base_version) < releases.first


@dataclass
class _Draft:
    """A feature's result while it is made."""

    feature: Feature
    files: list[FileResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    untested: bool = False
    state: State | None = None

    def result(self) -> FeatureResult:
        state = combine(file.state for file in self.files) if self.state is None else self.state
        reason = Reason("; ".join(self.notes)) if self.notes else None
        return FeatureResult(self.feature.id, state, tuple(self.files), reason, self.untested)


@dataclass(frozen=True)
class _Attempt:
    """A patch matched against the text as it is now.

    :ivar after: the patched bytes, ``None`` unless every hunk would be applied.
    :ivar clashes: the steps that stand in its way.
    """

    result: FileResult
    after: bytes | None = None
    clashes: tuple[Step, ...] = ()


class _Planner:
    def __init__(
        self, simulation: Simulation, release: Version | None, provenance: Provenance
    ) -> None:
        self.simulation, self.release, self.provenance = simulation, release, provenance
        self.drafts: list[_Draft] = []

    def add(self, feature: Feature) -> None:
        """Plan one more feature on what the ones before left."""
        draft = _Draft(feature)
        self.drafts.append(draft)
        if self.release is not None and below(self.release, feature.releases):
            draft.state = State.INAPPLICABLE
            draft.notes.append(f"{self.release} lies below its range, {feature.releases}")
        elif (shown := evidence(feature, self.release, self._scope_lines)).merged:
            draft.state = State.UPSTREAMED
            draft.notes.append(f"the release has it: {shown.text}")
        elif not feature.topics and not feature.added:
            draft.state = State.DRIFTED
            draft.notes.append(
                "it carries no patch, and the release does not have it: expected "
                f"{shown.text or feature.title}; found no such text there"
            )
        else:
            self._note_untested(draft)
            for added in feature.added:
                self._add_module(draft, added)
            for topic in feature.topics:
                self._add_topic(draft, topic)

    def finish(self) -> Plan:
        """The plan of all that was added."""
        self._compile()
        results = tuple(draft.result() for draft in self.drafts)
        of_features = [notice for draft in self.drafts for notice in draft.feature.notices]
        notices = (*of_features, *self.provenance.notices())
        if any(result.state.needs_attention for result in results):
            return Plan(results, (), notices)
        changes = tuple(
            Change(path, self.simulation.pristine(path), self.simulation.current(path))
            for path in sorted(self.simulation.steps)
        )
        return Plan(results, tuple(c for c in changes if c.before != c.after), notices)

    # Upstream

    def _scope_lines(self, path: str, scope: str) -> list[Sequence[str]]:
        """The lines of each place that a scope has in the release's own file."""
        self.provenance.use(path)
        data = self.simulation.pristine(path)
        try:
            places = self.simulation.scopes(data).get(scope, ()) if data is not None else ()
            lines = self.simulation.source(data).lines if data is not None else ()
        except (TextError, UnparsableError):
            return []
        return [lines[place.start : place.stop] for place in places]

    # Added modules

    def _add_module(self, draft: _Draft, added: AddedFile) -> None:
        path = added.path
        self.provenance.use(path)
        before, now = self.simulation.pristine(path), self.simulation.current(path)
        result, after = FileResult(path, State.PRISTINE), None
        problem = self.simulation.syntax.compile_error(added.content, path)
        if problem is not None:
            todo = f"correct {draft.feature.id}/files/{path} in its folder of patches"
            reason = Reason(f"the added module does not compile: {problem}", todo)
            result = _drifted(path, None, reason)
        elif before is not None and before != added.content:
            why = "expected no such file, found another one of that name; it is not overwritten"
            result = _drifted(path, None, Reason(why))
        elif before is not None:
            foreign = self.provenance.foreign(path)
            result = FileResult(path, State.UPSTREAMED)
            if foreign is not None:
                why = f"the module stands there already, but {foreign}"
                result = _drifted(path, None, Reason(why))
        elif now is not None and self.simulation.steps[path][0].after != added.content:
            step = self.simulation.steps[path][0]
            result = self._clash(step, path, None, draft)
        elif now is not None:
            # An earlier feature adds the same bytes: features may share a module.
            result = FileResult(path, State.PRISTINE)
        else:
            after = added.content
        self._keep(draft, f"files/{path}", _Attempt(result, after))

    # Topics

    def _add_topic(self, draft: _Draft, topic: Topic) -> None:
        inside = [
            v for v in topic.variants if self.release is not None and self.release in v.releases
        ]
        if inside:
            chosen = self._attempt(draft, inside[0].patch)
        else:
            if self.release is not None and self.release in draft.feature.releases:
                note = f"{topic.name} has no variant for {self.release}"
                draft.notes.append(f"{note}; untested, judged by content")
                draft.untested = True
            chosen = self._best(draft, topic)
        self.provenance.use(chosen.result.path)
        for step in chosen.clashes:
            self._clash(step, chosen.result.path, chosen.result.patch, draft)
        self._keep(draft, chosen.result.patch or "", chosen)

    def _note_untested(self, draft: _Draft) -> None:
        """Note a release that lies in no range: nobody has tried the feature there."""
        release, releases = self.release, draft.feature.releases
        if release is not None and release in releases:
            return
        if release is None:
            why = "the release of this vLLM cannot be told"
        elif release.is_prerelease:
            why = f"{release} is no release, so it is in no range"
        else:
            why = f"{release} is newer than its range, {releases}"
        draft.untested = True
        draft.notes.append(f"{why}; untested, judged by content")

    def _best(self, draft: _Draft, topic: Topic) -> _Attempt:
        """The variant that fits: all of it pristine, all of it there, or the nearest."""
        attempts = [self._attempt(draft, v.patch) for v in _by_distance(topic, self.release)]
        order = {State.PRISTINE: 0, State.UPSTREAMED: 1}

        def misfit(attempt: _Attempt) -> tuple[int, int]:
            wrong = sum(hunk.state.needs_attention for hunk in attempt.result.hunks)
            return order.get(attempt.result.state, 2), wrong

        return min(attempts, key=misfit)

    def _attempt(self, draft: _Draft, patch: Patch) -> _Attempt:
        """Match a patch against its file as it is now; nothing is kept."""
        data = self.simulation.current(patch.path)
        if data is None:
            reason = Reason(f"expected the file {patch.path}, found none")
            hunks = tuple(HunkResult(h.scope, State.MISSING, reason=reason) for h in patch.hunks)
            return _Attempt(FileResult(patch.path, State.MISSING, patch.name, hunks, reason))
        clashes: list[Step] = []
        results = [self._stand(draft, patch, hunk, data, clashes) for hunk in patch.hunks]
        _refuse_overlaps(patch.hunks, results)
        after: bytes | None = None
        problem: Reason | None = None
        if all(result.state is State.PRISTINE for result in results):
            after, problem = self._apply(patch, results, data)
        state = file_state(tuple(results)) if problem is None else State.DRIFTED
        result = FileResult(patch.path, state, patch.name, tuple(results), problem)
        return _Attempt(result, after if state is State.PRISTINE else None, tuple(clashes))

    def _stand(
        self, draft: _Draft, patch: Patch, hunk: Hunk, data: bytes, clashes: list[Step]
    ) -> HunkResult:
        """How one hunk stands, the release's own text and earlier steps told apart."""
        now = self.simulation.match(hunk, data)
        steps = self.simulation.steps.get(patch.path, [])
        if now.state is State.PRISTINE:
            return now
        before = self.simulation.match(hunk, self.simulation.pristine(patch.path)) if steps else now
        if before.state is State.UPSTREAMED:
            foreign = self.provenance.foreign(patch.path)
            if foreign is None:
                return before
            return before._replace(
                state=State.DRIFTED,
                reason=Reason(f"only its lines after the change stand there, but {foreign}"),
            )
        if before.state is not State.PRISTINE and now.state is not State.UPSTREAMED:
            return now
        step = next(
            s for s in steps if self.simulation.match(hunk, s.after).state is not before.state
        )
        clashes.append(step)
        reason = self._clash_reason(step, draft, patch.name)
        return HunkResult(hunk.scope, State.DRIFTED, before.line, reason)

    def _apply(
        self, patch: Patch, results: list[HunkResult], data: bytes
    ) -> tuple[bytes | None, Reason | None]:
        """The patched bytes, or why there are none; a hunk that would apply twice is marked."""
        # In the order of the text: where one hunk ends with an insertion and the next begins with
        # one, that is the order of the new lines.
        placed = sorted(zip(results, patch.hunks, strict=True), key=lambda pair: pair[0].line or 0)
        made = [edit for result, hunk in placed for edit in edits(hunk, (result.line or 1) - 1)]
        endings = [final_newline_after(hunk) for hunk in patch.hunks]
        ending = next((ending for ending in endings if ending is not None), None)
        try:
            after = self.simulation.source(data).splice(made, ending).to_bytes()
            self.simulation.scopes_after(after, data, made)
        except TextError as error:
            return None, Reason(f"the patched file cannot be written: {error}")
        except UnparsableError as error:
            return None, Reason(f"the patched file is no Python: {error}", "mend the patch")
        for index, hunk in enumerate(patch.hunks):
            again = self.simulation.match(hunk, after)
            if again.state is State.UPSTREAMED:
                continue
            if again.state in (State.PRISTINE, State.AMBIGUOUS):
                state, what = (
                    State.AMBIGUOUS,
                    f"its lines before the change still stand at line {again.line}",
                )
            else:
                state, what = (
                    State.DRIFTED,
                    "its lines after the change cannot be found in its scope",
                )
            results[index] = results[index]._replace(
                state=state,
                reason=Reason(
                    f"once it is applied, {what}, so nothing could tell that it is",
                    "give the hunk more context or another scope",
                ),
            )
        return after, None

    # Keeping

    def _keep(self, draft: _Draft, label: str, attempt: _Attempt) -> None:
        draft.files.append(attempt.result)
        if attempt.after is not None:
            step = Step(len(self.drafts) - 1, len(draft.files) - 1, label, attempt.after)
            self.simulation.steps.setdefault(attempt.result.path, []).append(step)

    def _clash_reason(self, step: Step, draft: _Draft, patch: str | None) -> Reason:
        other = self.drafts[step.feature].feature.id
        mine = f"{draft.feature.id} ({patch})" if patch else draft.feature.id
        return Reason(
            f"{other} ({step.label}) and {mine} touch the same lines, and neither is applied",
            "leave one of them out, or make one patch of both",
        )

    def _clash(self, step: Step, path: str, patch: str | None, draft: _Draft) -> FileResult:
        """Refuse the earlier step too; gives the later one's result."""
        reason = self._clash_reason(step, draft, patch)
        files = self.drafts[step.feature].files
        earlier = files[step.file]
        if not earlier.state.needs_attention:
            files[step.file] = earlier._replace(state=State.DRIFTED, reason=reason)
        return _drifted(path, patch, reason)

    def _compile(self) -> None:
        """Refuse the first step of each file whose result does not compile."""
        for path, steps in self.simulation.steps.items():
            compile_error = self.simulation.syntax.compile_error
            if compile_error(steps[-1].after, path) is None:
                continue
            for step in steps:
                problem = compile_error(step.after, path)
                if problem is not None:
                    files = self.drafts[step.feature].files
                    files[step.file] = files[step.file]._replace(
                        state=State.DRIFTED,
                        reason=Reason(
                            f"the patched file does not compile: {problem}", "mend the patch"
                        ),
                    )
                    break


def _drifted(path: str, patch: str | None, reason: Reason) -> FileResult:
    return FileResult(path, State.DRIFTED, patch, (), reason)


def _by_distance(topic: Topic, release: Version | None) -> Iterable[Variant]:
    """The variants, the most likely first: the newest that is not newer than the release."""
    newest = sorted(topic.variants, key=lambda variant: variant.releases, reverse=True)
    if release is None:
        return newest
    older = [variant for variant in newest if variant.releases.first <= release]
    newer = [variant for variant in reversed(newest) if variant.releases.first > release]
    return [*older, *newer]


def _refuse_overlaps(hunks: Sequence[Hunk], results: list[HunkResult]) -> None:
    """Mark the hunks of one patch whose pre-images stand on the same lines."""
    placed = [
        (index, range(result.line, result.line + len(hunks[index].pre)))
        for index, result in enumerate(results)
        if result.state is State.PRISTINE and result.line is not None
    ]
    for index, mine in placed:
        shared = sorted(
            hunks[other].patch_line
            for other, theirs in placed
            if other != index and mine.start < theirs.stop and theirs.start < mine.stop
        )
        if shared:
            results[index] = results[index]._replace(
                state=State.DRIFTED,
                reason=Reason(
                    "it stands on the same lines as the hunks at these lines of the patch: "
                    f"{', '.join(map(str, shared))}",
                    "make one hunk of them",
                ),
            )
