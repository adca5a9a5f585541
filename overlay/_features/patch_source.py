"""The lines of a ``.patch`` file while they are read, and what may not be in one."""

from __future__ import annotations

from dataclasses import dataclass, field

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
