"""Read the hunks of a ``.patch`` file: their scopes, counts, lines and ends of lines.

Line numbers are hints.  What places a hunk is its section heading (the scope) and its pre-image, so
both are checked here, and every error is given its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from overlay._features.model import FILE_SCOPE, MODULE_SCOPE, Hunk
from overlay.errors import MAX_ERRORS, PatchFormatError

#: Beginnings of lines of git that no patch may have -> why.
FORBIDDEN = (
    (
        "rename ",
        "it renames a file; remove the old one (deleted file mode), put the new one under files/",
    ),
    ("copy ", "it copies a file"),
    ("similarity index", "it renames or copies a file"),
    ("dissimilarity index", "it rewrites a file"),
    ("old mode", "it changes a file's mode"),
    ("new mode", "it changes a file's mode"),
    ("new file mode", "it creates a file; put the module under files/ instead"),
    (
        "Binary files ",
        "it lacks the bytes of a binary file: make it with git diff --binary",
    ),
)

#: Beginnings of lines of git that say what becomes of a whole file.
WHOLE = ("deleted file mode", "GIT binary patch")


@dataclass
class Source:
    """The lines of a patch, read once from the first to the last.

    :ivar text_end: the index behind the last line that is not blank.
    :ivar at: the index of the next line; :ivar errors: every malformed place so far.
    """

    name: str
    lines: list[str]
    text_end: int
    at: int = 0
    errors: list[PatchFormatError] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, name: str) -> Source:
        """Split the text of a patch into lines."""
        bom = "\ufeff"
        pieces = text.removeprefix(bom).split("\n")
        unfinished = pieces[-1] != ""
        if not unfinished:
            pieces.pop()
        # The end of a line is not content: a patch checked out with CRLF says the same.  A carriage
        # return alone stays, for git does not take it for an empty line of context.
        lines = [piece if piece == "\r" else piece.removesuffix("\r") for piece in pieces]
        text_end = max((index for index, line in enumerate(lines, 1) if line.strip()), default=0)
        source = cls(name, lines, text_end)
        if text.startswith(bom):
            source.error(1, "it begins with a byte-order mark: save it as UTF-8 without one")
        if unfinished:
            source.error(len(pieces), "its last line has no newline; git refuses such a patch")
        return source

    @property
    def ended(self) -> bool:
        """Whether every line was read."""
        return self.at >= len(self.lines)

    @property
    def line(self) -> str:
        """The next line; only where there is one."""
        return self.lines[self.at]

    def take(self) -> tuple[str, int]:
        """The next line and its 1-based number; it counts as read."""
        self.at += 1
        return self.lines[self.at - 1], self.at

    def only_blank_from(self, index: int) -> bool:
        """Whether only blank lines follow from ``index`` on."""
        return index >= self.text_end

    def error(self, line: int | None, problem: str) -> None:
        """Note an error at a 1-based line; behind ``MAX_ERRORS`` nothing more is noted."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(PatchFormatError(self.name, line, problem))


def diff_begins(line: str) -> bool:
    """Whether a line belongs to the diff, so that the headers have ended."""
    return line.startswith(("diff --git ", "--- ", "+++ ", "@@ ", *WHOLE)) or any(
        line.startswith(start) for start, _ in FORBIDDEN
    )


#: No file has a line of ten digits, and Python refuses numbers of more than 4,300.
_RANGE = r"([0-9]{1,9})(?:,([0-9]{1,9}))?"

_HUNK = re.compile(rf"^@@ -{_RANGE} \+{_RANGE} @@(?:[ \t](?P<heading>.*))?$")

_SCOPE = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")

#: What git format-patch writes behind the last hunk: a mark, and the version of git.
_SIGNATURE = re.compile(r"^\d+(\.\w+)+.*$")


@dataclass
class _Body:
    """The lines of one hunk while they are read, with the numbers that its header promises.

    :ivar counts: how many lines of the pre-image and of the post-image were read.
    :ivar unfinished: index of a line without a line end -> the line number of its mark.
    """

    line: int
    scope: str
    source_line: int
    promised: tuple[int, int]
    lines: list[tuple[str, str]] = field(default_factory=list)
    counts: tuple[int, int] = (0, 0)
    unfinished: dict[int, int] = field(default_factory=dict)

    def add(self, op: str, text: str) -> None:
        """Take one more line."""
        pre, post = self.counts
        self.lines.append((op, text))
        self.counts = pre + (op != "+"), post + (op != "-")


def read_hunks(source: Source) -> tuple[Hunk, ...]:
    """The hunks, up to the end of the file."""
    hunks: list[Hunk] = []
    while not source.ended:
        line, number = source.take()
        if line.startswith("@@"):
            hunk = _read_hunk(source, line, number)
            if hunk is not None:
                hunks.append(hunk)
        elif line.startswith(("diff --git ", "--- ")):
            source.error(number, "a second file begins; a patch is for one path")
            return ()
        elif _signature_begins(source, number - 1):
            break
        elif not source.only_blank_from(number - 1):
            source.error(number, f"expected '@@ -... +... @@ scope', found {line!r}")
            return ()
    if not hunks and not source.errors:
        source.error(source.at, "it holds no hunk: expected '@@ -... +... @@ scope'")
    return tuple(hunks)


def _signature_begins(source: Source, index: int) -> bool:
    """Whether the rest of the file is the signature of git format-patch."""
    if source.lines[index] not in ("-- ", "--"):
        return False
    version = source.lines[index + 1 : index + 2]
    return bool(version and _SIGNATURE.match(version[0])) and source.only_blank_from(index + 2)


def _read_hunk(source: Source, line: str, number: int) -> Hunk | None:
    match = _HUNK.match(line)
    if match is None:
        source.error(number, f"expected '@@ -line,count +line,count @@ scope', found {line!r}")
        _skip_hunk(source)
        return None
    promised = (int(match[2] or 1), int(match[4] or 1))
    body = _Body(number, (match["heading"] or "").strip(), int(match[1]), promised)
    _check_scope(source, body)
    _read_body(source, body)
    if body.counts != body.promised and not source.ended and source.line.startswith("\t"):
        source.error(
            source.at + 1,
            "the line begins with a tab: expected ' ', '+' or '-' before the text of a line (an "
            "editor or a terminal replaced the blank of a line of context)",
        )
        _skip_hunk(source)
        return None
    before = len(source.errors)
    _check_counts(source, body)
    hunk = _hunk(source, body)
    _check_images(source, hunk)
    return hunk if len(source.errors) == before else None


def _skip_hunk(source: Source) -> None:
    while not source.ended and not source.line.startswith(("@@", "diff ")):
        source.at += 1


def _check_scope(source: Source, body: _Body) -> None:
    if body.scope in (MODULE_SCOPE, FILE_SCOPE) or _SCOPE.match(body.scope):
        return
    actual = f"found {body.scope!r}" if body.scope else "found nothing"
    source.error(
        body.line,
        "expected the scope behind the second @@ (a qualified name such as "
        f"Class.method, or {MODULE_SCOPE} for anywhere in the file), {actual}",
    )


def _read_body(source: Source, body: _Body) -> None:
    while not source.ended and not _body_ends(source, body):
        line, number = source.take()
        if line.startswith("\\"):
            if not body.lines or len(body.lines) - 1 in body.unfinished:
                source.error(number, f"{line!r} follows no line of the hunk")
            else:
                body.unfinished[len(body.lines) - 1] = number
        else:
            # Editors that strip trailing blanks leave an empty context line empty.
            body.add(line[:1] or " ", line[1:])


def _body_ends(source: Source, body: _Body) -> bool:
    """Whether the next line is no longer a line of the hunk."""
    line = source.line
    if line.startswith(("@@", "diff --git ")):
        return True
    if body.counts != body.promised:
        return line[:1] not in (" ", "+", "-", "\\", "")
    following = source.lines[source.at + 1 : source.at + 2]
    second_file = line.startswith("--- ") and (following or [""])[0].startswith("+++ ")
    return (
        second_file
        or source.only_blank_from(source.at)
        or _signature_begins(source, source.at)
        or line[:1] not in (" ", "+", "-", "\\")
    )


def _check_counts(source: Source, body: _Body) -> None:
    """Compare the numbers of the hunk's header with its lines."""
    if body.counts == body.promised:
        return
    (promised_pre, promised_post), (pre, post) = body.promised, body.counts
    source.error(
        body.line,
        f"the header promises {promised_pre} lines before and {promised_post} after, the hunk "
        f"has {pre} and {post}: @@ -{body.source_line},{pre} +...,{post} @@",
    )


def _hunk(source: Source, body: _Body) -> Hunk:
    """Build the hunk of a body; a mark of an unfinished line must follow the last of its side."""
    last = {
        side: max((i for i, (op, _) in enumerate(body.lines) if op != other), default=None)
        for side, other in (("pre", "+"), ("post", "-"))
    }
    for index, number in body.unfinished.items():
        op = body.lines[index][0]
        sides = {" ": ("pre", "post"), "-": ("pre",), "+": ("post",)}[op]
        if any(last[side] != index for side in sides):
            source.error(number, "the line before it is not the last of its side of the hunk")
    return Hunk(
        body.scope,
        tuple(body.lines),
        body.source_line,
        body.line,
        pre_unfinished=last["pre"] in body.unfinished,
        post_unfinished=last["post"] in body.unfinished,
    )


def _check_images(source: Source, hunk: Hunk) -> None:
    """Refuse a hunk that could not be placed, or of which nothing could show that it is applied."""
    problem = None
    if not hunk.pre:
        problem = "its pre-image is empty: give it lines of context"
    elif not hunk.post:
        problem = (
            "its post-image is empty, so nothing could show that it is applied: give it lines of "
            "context"
        )
    elif (hunk.pre, hunk.pre_unfinished) == (hunk.post, hunk.post_unfinished):
        problem = "it changes nothing (line endings do not count as content)"
    elif hunk.shows_nothing:
        problem = (
            "its post-image is part of its pre-image, so nothing could show that it is applied: "
            "give it context on both sides of the lines that it removes"
        )
    if problem is not None:
        source.error(hunk.patch_line, problem)
