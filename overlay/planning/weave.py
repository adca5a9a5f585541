"""One file's lines with who brought and who took each: what several features make of one text.

Every line that the file ever had in a plan stands here once, in order.  So the text without some of
the features is read off, and a change that was found in it is carried to the text with all of them
by its lines, not by their numbers.  Pure, and without a search for differences: planning made every
edit, so it knows which lines each one touched."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overlay.planning.text import Edit

#: Who brought the lines of the release itself.
RELEASE = -1

#: Steps after which the search for a pre-image ends: 30 features that add the same lines at one
#: place could be left out in a billion ways.
MOST_STEPS = 20_000

#: The most sets of features without which a hunk is tried.
MOST_SETS = 8


@dataclass(slots=True)
class _Thread:
    """One line: its text, who brought it, and who took it (``None``: it is there)."""

    text: str
    born: int
    died: int | None = None

    def in_text_without(self, absent: Collection[int]) -> bool:
        there = self.born not in absent
        return there and (self.died is None or self.died in absent)


class Carriage(NamedTuple):
    """Edits found in a text without some features, in the text with all of them.

    :ivar met: the features whose changes are not apart from them, and then there are no edits.
    """

    edits: tuple[Edit, ...] = ()
    met: tuple[int, ...] = ()


class Weave:
    """The lines of one file; the owners of edits are features, by their number in the plan.

    :param lines: the release's own, or those of the module that the first owner adds.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._threads = [_Thread(line, RELEASE) for line in lines]
        self._below: dict[int, set[int]] = {}
        self._visible_threads: dict[frozenset[int], list[int]] = {}

    @property
    def owners(self) -> Collection[int]:
        """The features that changed the file, in order."""
        return self._below.keys()

    def add(self, owner: int, edits: Sequence[Edit]) -> None:
        """Take up the edits of a feature, which count lines of the text with all before it."""
        below = self._below.setdefault(owner, set())
        visible = self._visible(frozenset())
        pieces: list[tuple[int, tuple[str, ...]]] = []
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.stop)):
            below |= self._owners_near(edit, visible) - {owner}
            for at in visible[edit.start : edit.stop]:
                self._threads[at].died = owner
            behind = visible[edit.stop - 1] + 1 if edit.stop else 0
            pieces.append((behind, edit.lines))
        threads: list[_Thread] = []
        position = 0
        for behind, lines in pieces:
            threads += self._threads[position:behind]
            threads += [_Thread(line, owner) for line in lines]
            position = behind
        self._threads = threads + self._threads[position:]
        self._visible_threads.clear()

    def edits_without(self, absent: Collection[int]) -> tuple[Edit, ...]:
        """What makes the text without some features of the release's own lines."""
        edits: list[Edit] = []
        number = begin = 0
        lines: list[str] = []
        for thread in self._threads:
            there = thread.in_text_without(absent)
            if thread.born != RELEASE:
                lines += [thread.text] if there else []
            elif there:
                if lines or begin < number:
                    edits.append(Edit(begin, number, tuple(lines)))
                lines, number = [], number + 1
                begin = number
            else:
                number += 1
        if lines or begin < number:
            edits.append(Edit(begin, number, tuple(lines)))
        return tuple(edits)

    def near(self, edits: Sequence[Edit]) -> tuple[int, ...]:
        """The features whose changes are not apart from edits of the text with all of them."""
        visible = self._visible(frozenset())
        return tuple(sorted(set().union(*(self._owners_near(edit, visible) for edit in edits))))

    def all_but(self, own: int) -> frozenset[int]:
        """The other features, without those that changes of ``own`` were made on."""
        return frozenset(self.owners) - self._with_supports({own})

    def with_dependents(self, absent: Collection[int]) -> frozenset[int]:
        """Some features, and those whose changes are not apart from theirs and came later."""
        closed = set(absent)
        for owner in self._below:
            if self._below[owner] & closed:
                closed.add(owner)
        return frozenset(closed)

    def line(self, number: int, absent: Collection[int]) -> int:
        """Where a line (0-based) of the text without some features is in the text with all."""
        visible = self._visible(frozenset(absent))
        at = visible[number] if number < len(visible) else len(self._threads)
        return bisect_left(self._visible(frozenset()), at)

    def carry(self, edits: Sequence[Edit], absent: Collection[int]) -> Carriage:
        """Edits of the text without some features, in the text with all of them.

        Two changes are apart where a line stands between them that neither of them touches: that
        is git's own rule (``git merge-file``, tried on 2026-11-26), for insertions too.
        """
        visible = self._visible(frozenset(absent))
        whole = self._visible(frozenset())
        met: list[int] = []
        carried: list[Edit] = []
        for edit in edits:
            around = self._around(edit, visible)
            met += [
                owner
                for thread in self._threads[around.start : around.stop]
                for owner in (thread.born, thread.died)
                if owner is not None and owner in absent
            ]
            before = around.start if edit.start else -1
            start = bisect_right(whole, before)
            carried.append(Edit(start, start + edit.stop - edit.start, edit.lines))
        if met:
            return Carriage(met=tuple(dict.fromkeys(met)))
        return Carriage(tuple(carried))

    def needed_by(self, edits: Sequence[Edit]) -> frozenset[int]:
        """The features that edits of the text with all of them are not apart from, with theirs."""
        return self._with_supports(self.near(edits))

    def taken_back(self, edits: Sequence[Edit], absent: Collection[int]) -> tuple[Edit, ...]:
        """Edits of the text with all features, in the text without some: the way back of ``carry``.

        :param absent: features that the edits are apart from.
        """
        whole, part = self._visible(frozenset()), self._visible(frozenset(absent))
        starts = [
            bisect_left(part, whole[edit.start - 1]) + 1 if edit.start else 0 for edit in edits
        ]
        return tuple(
            Edit(start, start + edit.stop - edit.start, edit.lines)
            for edit, start in zip(edits, starts, strict=True)
        )

    def sets_without_which(self, image: Sequence[str], own: int) -> list[frozenset[int]]:
        """The sets of features without which an image stands in the text, the smallest first.

        :param own: the feature whose image it is; its earlier changes stay.
        """
        absent_sets: dict[frozenset[int], None] = {}
        for absent, present in self._occurrences(image, own):
            closed = self.with_dependents(absent)
            if not closed & self._with_supports(present):
                absent_sets[closed] = None
        return sorted(absent_sets, key=lambda absent: (len(absent), sorted(absent)))[:MOST_SETS]

    # Private

    def _visible(self, absent: frozenset[int]) -> list[int]:
        """The threads of the text without some features, by their place."""
        if absent not in self._visible_threads:
            self._visible_threads[absent] = [
                at for at, thread in enumerate(self._threads) if thread.in_text_without(absent)
            ]
        return self._visible_threads[absent]

    def _around(self, edit: Edit, visible: Sequence[int]) -> range:
        """The threads that an edit replaces, with the line before and the one behind it."""
        start = visible[edit.start - 1] if edit.start else 0
        stop = visible[edit.stop] + 1 if edit.stop < len(visible) else len(self._threads)
        return range(start, stop)

    def _owners_near(self, edit: Edit, visible: Sequence[int]) -> set[int]:
        around = self._around(edit, visible)
        threads = self._threads[around.start : around.stop]
        owners = {owner for thread in threads for owner in (thread.born, thread.died)}
        return {owner for owner in owners if owner is not None and owner != RELEASE}

    def _with_supports(self, present: Collection[int]) -> frozenset[int]:
        """Some features, and those that their changes are not apart from and came before."""
        closed = set(present)
        for owner in reversed(self._below):
            if owner in closed:
                closed |= self._below[owner]
        return frozenset(closed)

    def _occurrences(
        self, image: Sequence[str], own: int
    ) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """Who has to be left out, and who has to stay, for an image to stand at some place."""
        steps = 0
        for begin, first in enumerate(self._threads):
            if not image or first.text != image[0]:
                continue
            waiting = [(begin, 0, _Choice(frozenset(), frozenset({own})))]
            while waiting and steps < MOST_STEPS:
                at, matched, choice = waiting.pop()
                steps += 1
                if matched == len(image):
                    yield choice
                    continue
                if at == len(self._threads):
                    continue
                thread = self._threads[at]
                if matched:  # the line is not in the text
                    for skipped in (choice.without(thread.born), choice.having(thread.died)):
                        waiting += [] if skipped is None else [(at + 1, matched, skipped)]
                if thread.text == image[matched]:
                    there = choice if thread.born == RELEASE else choice.having(thread.born)
                    if there is not None and thread.died is not None:
                        there = there.without(thread.died)
                    waiting += [] if there is None else [(at + 1, matched + 1, there)]


class _Choice(NamedTuple):
    """Some features of which it is settled that they are left out, or stay."""

    absent: frozenset[int]
    present: frozenset[int]

    def without(self, owner: int) -> _Choice | None:
        """The choice with an owner left out; ``None`` where it cannot be."""
        if owner == RELEASE or owner in self.present:
            return None
        return self._replace(absent=self.absent | {owner})

    def having(self, owner: int | None) -> _Choice | None:
        """The choice with an owner that stays; ``None`` where it cannot."""
        if owner is None or owner in self.absent:
            return None
        return self._replace(present=self.present | {owner})
