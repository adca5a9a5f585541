"""One patch against one text: where its hunks land, and the text that it leaves.  Pure.

The planner puts attempts in sequence; ``overlay.authoring.porting`` tries variants on releases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from overlay._features.model import FILE_SCOPE, Hunk, Patch, WholeFile
from overlay.package import is_module
from overlay.planning.matching import (
    edits,
    final_newline_after,
    match,
    match_whole,
    misplaced,
    places_of,
    removed_by,
)
from overlay.planning.scopes import Scopes, Syntax, UnparsableError
from overlay.planning.telling import Place, anchored, context_of, narrowed
from overlay.planning.text import Edit, SourceText, TextError
from overlay.results import FileResult, HunkResult, Reason, State, file_state


class Judged(NamedTuple):
    """The state of a hunk in a text, and how it lands there.

    :ivar edits: what it changes, where its pre-image does not stand in one piece at its line.
    :ivar lines: the 0-based lines that it is on then.
    :ivar after: the text that it was made on, with it, where it does not show in the patched one.
    """

    result: HunkResult
    edits: tuple[Edit, ...] | None = None
    lines: range = range(0)
    after: bytes | None = None


Judge = Callable[[Hunk, "bytes | None"], Judged]


#: What to do about a file that is not Python to the one that runs this.
_OTHER_PYTHON = (
    "run overlay with the Python that imports the package (this is "
    f"{sys.version_info.major}.{sys.version_info.minor}); where that cannot read it either, "
    "reinstall the package"
)


class Attempt(NamedTuple):
    """A patch, or an added module, tried on one text.

    :ivar after: the bytes that it leaves; ``None`` unless all of it would be applied.
    :ivar edits: what it changes of the text.
    :ivar removes: whether it would be applied, and leaves no file.
    """

    result: FileResult
    after: bytes | None = None
    edits: tuple[Edit, ...] = ()
    removes: bool = False


class Texts:
    """Answers about texts by their bytes, each worked out once."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        self._sources: dict[bytes, SourceText | TextError] = {}
        self._places: dict[tuple[bytes, str], Sequence[Place]] = {}

    def source(self, data: bytes) -> SourceText:
        """The text of a file.

        :raises TextError: if it is not source text.
        """
        answer = self._sources.get(data)
        if answer is None:
            try:
                answer = SourceText.from_bytes(data)
            except TextError as error:
                answer = error
            self._sources[data] = answer
        if isinstance(answer, TextError):
            raise answer
        return answer

    def keep(self, text: SourceText) -> bytes:
        """The bytes of an edited text, which are not read again where that would give the same."""
        data = text.to_bytes()
        if text.read_alike:
            self._sources.setdefault(data, text)
        return data

    def scopes(self, data: bytes) -> Scopes:
        """The scopes of a file.

        :raises TextError, UnparsableError: if it is not source text, or not Python.
        """
        return self.syntax.scopes(data, self.source(data).lines)

    def _scopes_with(self, scope: str, data: bytes) -> Scopes:
        """The scopes of a file in which one is looked for; a data file is one scope."""
        if scope == FILE_SCOPE:
            return {FILE_SCOPE: [range(len(self.source(data).lines))]}
        return self.scopes(data)

    def match(self, hunk: Hunk, data: bytes | None) -> HunkResult:
        """The state of a hunk in these bytes; ``drifted`` where they cannot be read."""
        if hunk.whole is not None:
            return match_whole(hunk.whole, data)
        if data is None:
            return HunkResult(hunk.scope, State.MISSING)
        try:
            source = self.source(data)
            evidence = self.places(data, hunk.scope)
            scopes = self._scopes_with(hunk.scope, data)
            return match(hunk, source.lines, scopes, source.final_newline, evidence)
        except (TextError, UnparsableError) as error:
            step = _OTHER_PYTHON if isinstance(error, UnparsableError) else None
            reason = Reason(f"the file cannot be read: {error}", step)
            return HunkResult(hunk.scope, State.DRIFTED, reason=reason)

    def less(self, hunk: Hunk, data: bytes) -> int | None:
        """How many lines of context a hunk that does not fit would land with; ``None``: with none.

        It is fewer than it has: whoever lays it so has to see that this is the place.
        """
        try:
            lines = frozenset(self.source(data).lines)
        except TextError:
            return None
        for sides in range(max(context_of(hunk)) - 1, -1, -1):
            form = narrowed(hunk, sides, sides)
            there = lines.issuperset(form.pre) and form.pre and form.post and anchored(form)
            if there and self.match(form, data).state is State.PRISTINE:
                return sides
        return None

    def places(self, data: bytes, scope: str) -> Sequence[Place]:
        """The lines of each place of a scope, as evidence.

        :raises TextError, UnparsableError: if the bytes are not source text, or not Python.
        """
        key = data, scope
        if key not in self._places:
            self._places[key] = places_of(
                scope, self.source(data).lines, self._scopes_with(scope, data)
            )
        return self._places[key]

    def misplaced(self, hunk: Hunk, data: bytes) -> bool:
        """Whether the pre-image of a hunk is in these bytes, but outside its scope."""
        try:
            scopes = self._scopes_with(hunk.scope, data)
            return misplaced(hunk, self.source(data).lines, scopes)
        except (TextError, UnparsableError):
            return False


def attempt(
    patch: Patch,
    data: bytes | None,
    texts: Texts,
    judge: Judge | None = None,
    missing_step: str | None = None,
) -> Attempt:
    """Try a patch on its file.

    :param data: the file; ``None`` where there is none.
    :param judge: the state of a hunk in ``data``; default: ``texts.match``.
    :param missing_step: what to do where there is no file.
    """
    if data is None and not removed_by(patch.hunks):
        reason = Reason(f"expected the file {patch.path}, found none", missing_step)
        hunks = tuple(HunkResult(h.scope, State.MISSING, reason=reason) for h in patch.hunks)
        return Attempt(FileResult(patch.path, State.MISSING, patch.name, hunks, reason))
    judged = [
        judge(hunk, data) if judge else Judged(texts.match(hunk, data)) for hunk in patch.hunks
    ]
    if patch.hunks and patch.hunks[0].whole is not None:
        return _attempt_whole(patch, patch.hunks[0].whole, judged[0].result)
    assert data is not None
    landings = [_landing(hunk, each) for hunk, each in zip(patch.hunks, judged, strict=True)]
    results = [each.result for each in judged]
    _refuse_overlaps(patch.hunks, landings, results)
    after: bytes | None = None
    problem: Reason | None = None
    changes: tuple[Edit, ...] = ()
    if all(result.state is State.PRISTINE for result in results):
        # In the order of the text: where one hunk ends with an insertion and the next begins with
        # one, that is the order of the new lines.
        changes = tuple(
            edit
            for each in sorted(landings, key=lambda each: each.lines.start)
            for edit in each.edits
        )
        after, problem = _apply(patch, landings, changes, data, texts)
        if after is not None:
            _refuse_hidden(patch, landings, results, after, texts)
    state = file_state(tuple(results)) if problem is None else State.DRIFTED
    result = FileResult(patch.path, state, patch.name, tuple(results), problem)
    return Attempt(result, after, changes) if state is State.PRISTINE else Attempt(result)


class _Landing(NamedTuple):
    """The 0-based lines that a hunk is on, and what it changes.

    :ivar ending: whether the file ends with a newline after it; ``None``: as before.
    :ivar after: the text that shows that it is applied; ``None``: the patched one.
    """

    lines: range
    edits: tuple[Edit, ...]
    ending: bool | None
    after: bytes | None


def _landing(hunk: Hunk, judged: Judged) -> _Landing:
    if judged.edits is not None:
        changes_end = hunk.pre_unfinished is not hunk.post_unfinished
        ending = final_newline_after(hunk) if changes_end else None
        return _Landing(judged.lines, judged.edits, ending, judged.after)
    at = (judged.result.line or 1) - 1
    lines = range(at, at + len(hunk.pre))
    return _Landing(lines, edits(hunk, at), final_newline_after(hunk), None)


def _attempt_whole(patch: Patch, whole: WholeFile, result: HunkResult) -> Attempt:
    """The change of a whole file, judged."""
    file = FileResult(patch.path, result.state, patch.name, (result,))
    if result.state is not State.PRISTINE:
        return Attempt(file)
    return Attempt(file, whole.after, removes=whole.after is None)


def _apply(
    patch: Patch,
    landings: Sequence[_Landing],
    changes: Sequence[Edit],
    data: bytes,
    texts: Texts,
) -> tuple[bytes | None, Reason | None]:
    """The patched bytes, or why there are none."""
    ending = next((each.ending for each in landings if each.ending is not None), None)
    try:
        after = texts.keep(texts.source(data).splice(changes, ending))
        if is_module(patch.path):
            texts.scopes(after)
    except TextError as error:
        return None, Reason(f"the patched file cannot be written: {error}")
    except UnparsableError as error:
        return None, Reason(f"the patched file is not Python: {error}", f"correct {patch.name}")
    return after, None


def _refuse_hidden(
    patch: Patch,
    landings: Sequence[_Landing],
    results: list[HunkResult],
    after: bytes,
    texts: Texts,
) -> None:
    """Mark the hunks of which nothing could tell that they are applied."""
    for index, (hunk, landing) in enumerate(zip(patch.hunks, landings, strict=True)):
        again = texts.match(hunk, after if landing.after is None else landing.after)
        if again.state is State.UPSTREAMED:
            continue
        if again.state in (State.PRISTINE, State.AMBIGUOUS):
            state = State.AMBIGUOUS
            what = f"its lines before the change are still there, at line {again.line}"
        else:
            state = State.DRIFTED
            what = "its lines after the change cannot be found in its scope"
        results[index] = results[index]._replace(
            state=state,
            reason=Reason(
                f"once it is applied, {what}, so nothing could tell that it is",
                f"give the hunk in {patch.name}:{hunk.patch_line} more context or another scope",
            ),
        )


def _refuse_overlaps(
    hunks: Sequence[Hunk], landings: Sequence[_Landing], results: list[HunkResult]
) -> None:
    """Mark the hunks of one patch whose pre-images are on the same lines."""
    placed = [
        (index, landings[index].lines)
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
                    "it is on the same lines as the hunks at these lines of the patch: "
                    f"{', '.join(map(str, shared))}",
                    "make one hunk of them",
                ),
            )
