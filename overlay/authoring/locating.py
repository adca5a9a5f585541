"""Find the text that a foreign change was made on.

A diff of git names each file's old bytes by their blob id: a release that has the file with that id
is the base.  Without ids, or where no release has them, the base is a guess: a release in which
every hunk of the file is found, and whose scopes lack the new lines, since the text before a change
lacks it.  A checkout of the package serves where no release does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from overlay._features.model import Feature, Hunk, blob_id
from overlay.authoring.composing import NotComposable, ScopedText, compose
from overlay.authoring.git import Checkout
from overlay.authoring.incoming import IncomingFile
from overlay.authoring.merge import matches, occurrences
from overlay.errors import UsageError
from overlay.package import Package, Tree, is_module, parse_version
from overlay.planning.code_lines import names_in
from overlay.planning.planner import Stack, lay, plan
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.telling import new_lines, share_of, stands_together
from overlay.planning.text import Edit, SourceText, TextError
from overlay.planning.upstream import hunk_is_upstream
from overlay.report.lines import enumeration
from overlay.results import Plan, State
from overlay.untrusted import read_regular

#: The largest source file that is read from a checkout, in bytes.
_LIMIT = 16 * 1024 * 1024

#: The lines that git and diff quote as the heading of a hunk: by default, and where a repository
#: says that it is Python.
_QUOTED = re.compile(r"[A-Za-z_$]"), re.compile(r"[ \t]*(?:class|(?:async[ \t]+)?def)[ \t]")

#: From so many letters on a heading may be the beginning of its line: diff quotes 40, git 80.
_CUT = 39

#: What the lines of a hunk are in the one that takes it back.
_TURNED = {"+": "-", "-": "+"}


class ReleaseTexts:
    """The files of releases, each read once.

    :param names: the releases, oldest first; :param tree: opens one by its name.
    :param beside: the names of further ones that can be read at once, oldest first.
    """

    def __init__(
        self,
        names: Sequence[str],
        tree: Callable[[str], Tree],
        beside: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.names = tuple(names)
        self.beside = beside
        self._open = tree
        self._trees: dict[str, Tree] = {}
        self._files: dict[tuple[str, str], bytes | None] = {}

    def read(self, release: str, path: str) -> bytes | None:
        """The bytes of a file in a release, ``None`` where it has no such file."""
        key = (release, path)
        if key not in self._files:
            self._files[key] = self.open(release).read(path)
        return self._files[key]

    def open(self, release: str) -> Tree:
        """The files of a release."""
        if release not in self._trees:
            self._trees[release] = self._open(release)
        return self._trees[release]

    def with_name(self, release: str) -> ReleaseTexts:
        """The same with one more release, in the order of versions."""
        if release in self.names:
            return self
        names = sorted((*self.names, release), key=Version)
        return ReleaseTexts(names, self._open, self.beside)

    def record(self, release: str) -> Mapping[str, str] | None:
        """The sha256 of the release's own files by path, where it has a RECORD."""
        record: Mapping[str, str] | None = getattr(self.open(release), "record", None)
        return record

    def plan(self, features: Sequence[Feature], release: str, syntax: Syntax) -> Plan:
        """What features do on a release."""
        tree, record = ReadBy(partial(self.read, release)), self.record(release)
        return plan(features, tree, Version(release), record, syntax)

    def lay(self, features: Sequence[Feature], release: str, syntax: Syntax) -> Stack:
        """Features on a release, as far as they fit."""
        tree, record = ReadBy(partial(self.read, release)), self.record(release)
        return lay(features, tree, Version(release), record, syntax)


class ReadBy(NamedTuple):
    """Files that a function reads; satisfies ``Tree``."""

    function: Callable[[str], bytes | None]

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; see ``Tree``."""
        return self.function(path)


@dataclass(frozen=True)
class Base:
    """The text that one file's change was made on, and what the change made of it.

    :ivar release: the release that has the text; ``None`` where none has it.
    :ivar by_id: whether the blob id proves the text.
    :ivar origin: in words, how releases made a text that none of them has.
    """

    path: str
    release: str | None
    before: bytes
    after: bytes
    by_id: bool
    origin: str = ""

    @property
    def words(self) -> str:
        """The text that the change was made on, in words."""
        return self.release or self.origin or "a text that only --base has"


#: Where a feature's folder keeps the text that it was made on, where no release has that.
OWN_BASE = "origin/base"

#: What `--base` names: a folder with the package's sources, perhaps a git repository; one file of
#: them; or the files of a release.
Origin = Path | Tree


def locate(
    file: IncomingFile,
    texts: ReleaseTexts,
    checkout: Origin | None = None,
    following: Sequence[IncomingFile] = (),
) -> Base | None:
    """The base of an edited file, or ``None`` where neither a release nor the checkout has it.

    :param checkout: the text that the user names.
    """
    newest = tuple(reversed(texts.names))
    if file.old_blob is not None:
        for release in newest:
            data = texts.read(release, file.path)
            if data is not None and blob_id(data).startswith(file.old_blob):
                after = following_bytes(data, file)
                if after is not None:
                    return Base(file.path, release, data, after, by_id=True)
    if checkout is not None and (base := _from_checkout(file, checkout)) is not None:
        same = (name for name in newest if texts.read(name, file.path) == base.before)
        return replace(base, release=next(same, None))
    if file.binary is not None:
        return None  # only an id tells the bytes that others take the place of
    fits = _fits(file, texts, following)
    return _guess(file, fits, texts) or (None if fits else _without_it((file, *following), texts))


def _without_it(parts: Sequence[IncomingFile], texts: ReleaseTexts) -> Base | None:
    """The text of the first release that has a change, without it: it was made between releases.

    A change that every release has, or that is the wrong way round, has no such text.
    """
    read = ((name, texts.read(name, parts[0].path)) for name in texts.names)
    names = {name: data for name, data in read if data is not None}
    if any(_without_context(hunk) for part in parts for hunk in part.hunks):
        return None
    texts_before = ((name, before_it(data, parts)) for name, data in names.items())
    first, before = next(((name, text) for name, text in texts_before if text), ("", None))
    if before is None or first == texts.names[0]:
        return None
    after = replay(before, parts[0].hunks)
    if after is None:
        return None
    by_id = parts[0].old_blob is not None and blob_id(before).startswith(parts[0].old_blob)
    return Base(parts[0].path, None, before, after, by_id, f"{first} without it")


def before_it(after: bytes, parts: Sequence[IncomingFile]) -> bytes | None:
    """The text that changes of a file were made on, from what they leave; ``None`` elsewhere."""
    before: bytes | None = after
    for part in reversed(parts):
        if before is None or not all(hunk.post for hunk in part.hunks):
            return None  # what is nowhere would be everywhere
        before = _by_content(before, [_turned(hunk) for hunk in part.hunks])
    return before


def _turned(hunk: Hunk) -> Hunk:
    """A hunk that takes back what another one does."""
    return hunk._replace(
        lines=tuple((_TURNED.get(op, op), text) for op, text in hunk.lines),
        pre_unfinished=hunk.post_unfinished,
        post_unfinished=hunk.pre_unfinished,
    )


class _Fit(NamedTuple):
    """A release in which every hunk of a change is found.

    :ivar hunks: the whole change as hunks of that text; ``None`` where it cannot be said in them.
    :ivar has_all: whether it has all new lines of the change that another fit lacks.
    """

    base: Base
    hunks: tuple[Hunk, ...] | None
    text: ScopedText | None
    incoming: tuple[Hunk, ...] = ()
    has_all: bool = False

    def places(self, scope: str) -> list[Sequence[str]]:
        """The lines of each place that a scope has in the text."""
        text = self.text
        ranges = () if text is None else text.scopes.get(scope, ())
        return [] if text is None else [text.lines[place.start : place.stop] for place in ranges]

    def lacks_it(self) -> bool:
        """Whether the text is not the change's own result: it lacks new lines of each hunk."""
        text = self.text
        if text is None:
            return True  # whoever composes it says why that cannot be done
        if self.has_all or self._beyond_an_end():
            return False
        if any(new_lines(hunk) and occurrences(text.lines, hunk.post) for hunk in self.incoming):
            return False
        hunks = self.hunks or ()
        for hunk in hunks:
            if text.match(hunk).state is not State.PRISTINE:
                return False
            if not new_lines(hunk) and (
                stands_together(hunk, self.places(hunk.scope), hunks)
                or any(self._has_by_lines(each, text) for each in self.incoming)
            ):
                return False
        return True

    def _has_by_lines(self, hunk: Hunk, text: ScopedText) -> bool:
        """Whether a text has all of a hunk by lines that stand together."""
        new = new_lines(hunk)
        all_there = not new or share_of(new, text.lines) == 1.0
        return all_there and stands_together(hunk, [text.lines], self.incoming)

    def _beyond_an_end(self) -> bool:
        """Whether a hunk of an end of the file fits elsewhere, where some of its lines are already.

        A hunk shows no lines behind its change where the file ends there, as git reads it, too.
        """
        lines = () if self.text is None else tuple(self.text.lines)
        ends = [
            (hunk, lines[-len(hunk.pre) :]) for hunk in self.incoming if hunk.lines[-1][0] != " "
        ]
        ends += [
            (hunk, lines[: len(hunk.pre)]) for hunk in self.incoming if hunk.lines[0][0] != " "
        ]
        return any(there != hunk.pre and share_of(new_lines(hunk), lines) for hunk, there in ends)


def _fits(file: IncomingFile, texts: ReleaseTexts, following: Sequence[IncomingFile]) -> list[_Fit]:
    """The releases in which a change is found by its own lines, the newest first."""
    fits: list[_Fit] = []
    answers: dict[bytes, _Fit | None] = {}
    for release in reversed(texts.names):
        data = texts.read(release, file.path)
        if data is None:
            continue
        if data not in answers:
            answers[data] = _fit(file, data, following)
        if (fit := answers[data]) is not None:
            fits.append(fit._replace(base=replace(fit.base, release=release)))
    return _told_apart([_with_common(fit, fits) for fit in fits])


def _told_apart(fits: Sequence[_Fit]) -> list[_Fit]:
    """The fits, those marked that have all new lines which not every one has.

    Where no new line tells, the hunks' post-images are asked in their place.
    """
    texts = [() if fit.text is None else fit.text.lines for fit in fits]
    hunks = fits[0].incoming if fits else ()
    new = {line for hunk in hunks for line in new_lines(hunk)}
    lines = [line for line in new if not all(share_of([line], text) for text in texts)]
    posts = [[bool(hunk.post and occurrences(text, hunk.post)) for hunk in hunks] for text in texts]
    tell_apart = [at for at in range(len(hunks)) if not all(post[at] for post in posts)]

    def has_all(text: Sequence[str], post: Sequence[bool]) -> bool:
        if lines:
            return share_of(lines, text) == 1.0
        return bool(tell_apart) and all(post[at] for at in tell_apart)

    rows = zip(fits, texts, posts, strict=True)
    return [fit._replace(has_all=has_all(text, post)) for fit, text, post in rows]


def _fit(file: IncomingFile, data: bytes, following: Sequence[IncomingFile]) -> _Fit | None:
    after = _by_content(data, file.hunks)
    if after is None:
        return None
    base = Base(file.path, None, data, after, by_id=False)
    whole: bytes | None = after
    for part in following:
        whole = None if whole is None else replay(whole, part.hunks)
    try:
        is_data = not is_module(file.path)
        hunks = None if whole is None else compose(data, whole, is_data=is_data)
        return _Fit(base, hunks, ScopedText.read(data, is_data=is_data), tuple(file.hunks))
    except (NotComposable, TextError, UnparsableError):
        return _Fit(base, None, None)


def _with_common(fit: _Fit, fits: Sequence[_Fit]) -> _Fit:
    """A fit whose hunks leave out the new lines that stand in their scopes in every fit.

    They leave out a definition of theirs, too, where every fit has one of that name already.
    """
    everywhere = set.intersection(*(names_in(_defined_anew(each)) for each in fits))
    common = dict.fromkeys(line for line in _defined_anew(fit) if names_in([line]) <= everywhere)
    for hunk in fit.hunks or ():
        for line in new_lines(hunk):
            if all(any(share_of([line], p) for p in each.places(hunk.scope)) for each in fits):
                common[line] = None
    hunks = fit.hunks and tuple(hunk._replace(base_has=tuple(common)) for hunk in fit.hunks)
    return fit._replace(hunks=hunks)


def _defined_anew(fit: _Fit) -> list[str]:
    """The lines of a fit's text that define what its hunks define."""
    text = fit.text
    return [] if text is None else [line for h in fit.hunks or () for line in text.twins(h)]


def _guess(file: IncomingFile, fits: Sequence[_Fit], texts: ReleaseTexts) -> Base | None:
    """Of the releases that take every hunk and lack the change, the most likely base.

    That is the one in which the hunks are nearest to their numbers; and where a release behind the
    oldest of them has the change, the newest one before that.
    """
    lacking = [fit for fit in fits if fit.lacks_it()]
    lacking = [fit for fit in lacking if fit.hunks is not None] or lacking
    if not lacking:
        return None
    nearest = min(lacking, key=lambda fit: _moved_lines(fit.base.before, file.hunks))
    order = list(texts.names).index
    numbers = range(order(str(lacking[-1].base.release)) + 1, len(texts.names))
    read = ((number, texts.read(texts.names[number], file.path)) for number in numbers)
    has = (number for number, data in read if _has_much(file.path, data, nearest.hunks))
    since = next(has, None)
    older = [
        fit
        for fit in lacking
        if since is not None
        and order(str(fit.base.release)) < since
        and _in_the_same_places(file.hunks, nearest.base.before, fit.base.before)
    ]
    return max(older, key=lambda fit: order(str(fit.base.release)), default=nearest).base


def _in_the_same_places(hunks: Sequence[Hunk], before: bytes, other: bytes) -> bool:
    """Whether hunks lie in another text where a diff of both puts their lines, and not at a twin.

    Where one function is like another, the hunks of a text that changed the first fit the second.
    """
    if before == other:
        return True
    lines, there = (SourceText.from_bytes(data).lines for data in (before, other))
    places, theirs = _placed(lines, hunks), _placed(there, hunks)
    pairs = matches(lines, there)
    return (
        places is not None
        and theirs is not None
        and all(
            pairs.get(at + row) == place + row
            for hunk, at, place in zip(hunks, places, theirs, strict=True)
            for row, line in enumerate(hunk.pre)
            if line.strip()
        )
    )


def _has_much(path: str, data: bytes | None, hunks: Sequence[Hunk] | None) -> bool:
    """Whether a text has the post-image or most new lines of every hunk."""
    if data is None or not hunks or not any(map(new_lines, hunks)):
        return False
    try:
        text = ScopedText.read(data, is_data=not is_module(path))
    except (TextError, UnparsableError):
        return False
    for hunk in hunks:
        lines = [text.lines[place.start : place.stop] for place in text.scopes.get(hunk.scope, ())]
        evidence = hunk_is_upstream(hunk, lines, hunks)
        there = evidence.merged or evidence.partly
        if not there and text.match(hunk).state is not State.UPSTREAMED:
            return False
    return True


def having(
    file: IncomingFile, texts: ReleaseTexts, following: Sequence[IncomingFile] = ()
) -> tuple[str, ...]:
    """The releases in which a change is found and whose scopes have its new lines, oldest first."""
    fits = _fits(file, texts, following)
    return tuple(str(fit.base.release) for fit in reversed(fits) if not fit.lacks_it())


def vague_hunk(file: IncomingFile, texts: ReleaseTexts) -> Hunk | None:
    """The hunk for whose lack of context ``locate`` has no base; ``None`` where that is not why."""
    vague = next(filter(_without_context, file.hunks), None)
    read = (texts.read(release, file.path) for release in texts.names)
    fits = any(data is not None and replay(data, file.hunks) is not None for data in read)
    return vague if fits else None


def _without_context(hunk: Hunk) -> bool:
    """Whether a hunk shows no line that stays, as those of ``diff -U0``."""
    return all(op != " " for op, _ in hunk.lines)


def _by_content(before: bytes, hunks: Sequence[Hunk]) -> bytes | None:
    """What hunks make of a text that only they themselves tell; ``None`` where one does not fit.

    A line number alone tells no place: a hunk without context must change lines that occur once.
    """
    try:
        lines = SourceText.from_bytes(before).lines if hunks else ()
    except TextError:
        return None
    for hunk in hunks:
        if lines and _without_context(hunk) and len(occurrences(lines, hunk.pre)) != 1:
            return None
    return replay(before, hunks)


def following_bytes(before: bytes, file: IncomingFile) -> bytes | None:
    """What one change makes of a file; ``None`` where it does not fit."""
    if file.binary is None:
        return replay(before, file.hunks)
    try:
        return file.binary.applied(before)
    except ValueError:
        return None  # a delta of other bytes


def replay(before: bytes, hunks: Sequence[Hunk]) -> bytes | None:
    """What hunks make of the text that they were made on; ``None`` where one does not fit.

    Each lies at its own line, or at the place nearest to it behind the hunk before; of places that
    are alike, below the line that its heading quotes.  Where they are not in the order of the file,
    or their numbers are not, each lies where its lines stand once.
    """
    if not hunks:
        return before  # a rename, also of what is no text
    try:
        source = SourceText.from_bytes(before)
    except TextError:
        return None
    places = _placed(source.lines, hunks)
    if places is None:
        return None
    ends: bool | None = None
    for at, hunk in zip(places, hunks, strict=True):
        if hunk.pre_unfinished or hunk.post_unfinished:
            at_end = at + len(hunk.pre) == len(source.lines)
            if not at_end or source.final_newline is hunk.pre_unfinished:
                return None
            ends = not hunk.post_unfinished
    splices = [
        Edit(at, at + len(hunk.pre), hunk.post) for at, hunk in zip(places, hunks, strict=True)
    ]
    try:
        return source.splice(splices, ends).to_bytes()
    except TextError:
        return None


def _placed(lines: Sequence[str], hunks: Sequence[Hunk]) -> list[int] | None:
    """The 0-based place of each hunk, as ``replay`` has it; ``None`` where one has none."""
    places = _in_order(lines, hunks) if in_order(hunks) else None
    return _alone(lines, hunks) if places is None else places


def in_order(hunks: Sequence[Hunk]) -> bool:
    """Whether the numbers of hunks are those of lines behind each other."""
    return all(
        before.source_line + len(before.pre) <= hunk.source_line for before, hunk in pairwise(hunks)
    )


def _in_order(lines: Sequence[str], hunks: Sequence[Hunk]) -> list[int] | None:
    """The 0-based places of hunks, each nearest to its number; ``None`` where one has none."""
    places: list[int] = []
    shift = next_line = 0
    for hunk in hunks:
        target = max(hunk.source_line - 1, 0)
        there = _likely_places(lines, hunk, next_line)
        if not there:
            return None
        at = min(there, key=lambda at: abs(at - target - shift))
        places.append(at)
        shift, next_line = at - target, at + len(hunk.pre)
    return places


def _likely_places(lines: Sequence[str], hunk: Hunk, first: int = 0) -> list[int]:
    """Where the lines of a hunk are; of several places those below the line that it quotes."""
    there = occurrences(lines, hunk.pre, first)
    if len(there) < 2 or not hunk.heading:
        return there
    return _below(hunk.heading, lines, there) or there


def doubts(base: Base, hunks: Sequence[Hunk]) -> Iterator[str]:
    """What to look at where a text was guessed: hunks that were moved to one of several places."""
    lines = () if base.by_id or not hunks else SourceText.from_bytes(base.before).lines
    shift = 0
    for hunk, at in zip(hunks, _placed(lines, hunks) or (), strict=False):
        moved, places = at + 1 - hunk.source_line, _likely_places(lines, hunk)
        if moved != shift and len(places) > 1:
            yield (
                f"{base.path}: the hunk at line {hunk.patch_line} was put at line {at + 1} of "
                f"{base.words}, and fits at {enumeration([str(each + 1) for each in places])}: see "
                "that it is where it belongs, or make the diff with the ids of blobs (`git diff "
                "--full-index`)"
            )
        shift = moved


def _below(heading: str, lines: Sequence[str], places: Sequence[int]) -> list[int]:
    """The places above which git and diff quote a line as a heading, perhaps its beginning alone.

    That is the last line that begins with a letter, or the last definition, as git is set up.
    """
    below: set[int] = set()
    for begins in _QUOTED:
        line, first = "", 0
        for at in places:  # in the order of the file, so that each line is looked at once
            above = (lines[row] for row in range(at - 1, first - 1, -1) if begins.match(lines[row]))
            line, first = next(above, line), at
            text = line.strip()
            if text == heading or (len(heading) >= _CUT and text.startswith(heading)):
                below.add(at)
    return sorted(below)


def _alone(lines: Sequence[str], hunks: Sequence[Hunk]) -> list[int] | None:
    """The 0-based place of each hunk; ``None`` where one has several or none."""
    places = [occurrences(lines, hunk.pre) for hunk in hunks]
    if any(len(each) != 1 or not hunk.pre for each, hunk in zip(places, hunks, strict=True)):
        return None
    return [at for (at,) in places]


def _moved_lines(before: bytes, hunks: Sequence[Hunk]) -> int:
    places = (_in_order(SourceText.from_bytes(before).lines, hunks) if hunks else ()) or ()
    pairs = zip(places, hunks, strict=False)
    return sum(abs(at - max(hunk.source_line - 1, 0)) for at, hunk in pairs)


def _from_checkout(file: IncomingFile, checkout: Origin) -> Base | None:
    """The base in a checkout: the blob that the diff names, or the file as it lies there."""
    data = None
    if file.old_blob is not None and isinstance(checkout, Path) and checkout.is_dir():
        data = _blob(checkout, file.old_blob)
    if data is None:
        data = read_origin(checkout, file.path)
    if data is None:
        return None
    by_id = file.old_blob is not None and blob_id(data).startswith(file.old_blob)
    if file.binary is not None and not by_id:
        return None
    after = following_bytes(data, file) if by_id else _by_content(data, file.hunks)
    if after is None:
        return None
    fit = None if by_id else _fit(file, data, ())
    if fit is not None and not _with_common(fit, [fit]).lacks_it():
        return None  # a checkout of a later commit: it has the change
    return Base(file.path, None, data, after, by_id)


def files_of(origin: Origin) -> ReadBy:
    """The files of what `--base` names; one file is that of its name, wherever it lies."""

    def read(path: str) -> bytes | None:
        other = isinstance(origin, Path) and origin.is_file() and Path(path).name != origin.name
        return None if other else read_origin(origin, path)

    return ReadBy(read)


def release_before(
    origin: Origin, paths: Sequence[str], texts: ReleaseTexts, package: Package
) -> str | None:
    """The last release before what `--base` names: by its version, or by its texts.

    :param paths: files of the package that tell; :returns: ``None`` where there is no release.
    """
    files = files_of(origin)
    text = files.read(f"{package.name}/_version.py") or b""
    numbers = re.findall(rb"(?m)^(?:__)?version.*= ['\"](\d[^'\"]*)['\"]", text)
    version = parse_version(numbers[0].decode("utf-8", "replace")) if numbers else None
    newest_first = tuple(reversed(texts.names))
    if version is not None:
        return next((name for name in newest_first if Version(name) <= version), None)
    own = {path: data for path in paths if (data := files.read(path)) is not None}

    def alike(name: str) -> float:
        pairs = ((data, texts.read(name, path) or b"") for path, data in own.items())
        return sum(
            SequenceMatcher(None, a.splitlines(), b.splitlines()).quick_ratio() for a, b in pairs
        )

    return max(newest_first, key=alike, default=None)


def behind(release: str, names: Sequence[str]) -> str:
    """What a build behind a release is called: the next post-release that is none of the names."""
    version = Version(release)
    first = str(version) if version.post is None else str(version).rpartition(".post")[0]
    posts = (f"{first}.post{number}" for number in count((version.post or 0) + 1))
    return next(post for post in posts if post not in names)


def read_origin(origin: Origin, path: str) -> bytes | None:
    """A file of what `--base` names; of one file each edit is asked whether it fits."""
    if not isinstance(origin, Path):
        return origin.read(path)
    return read_regular(origin / path if origin.is_dir() else origin, _LIMIT)


def _blob(checkout: Path, blob: str) -> bytes | None:
    """A file of a repository's history by its id; ``None`` where git or the blob is missing."""
    try:
        data = Checkout(checkout).blob(blob)
    except UsageError:
        return None  # an unpacked sdist serves too: its files are read as they lie there
    return data if data is not None and len(data) <= _LIMIT else None
