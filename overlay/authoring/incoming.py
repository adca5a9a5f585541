"""Read a change that was made elsewhere: a diff, or mails of ``git format-patch``.

What comes in is a stranger's text.  It is parsed by unidiff and by the standard library's mail
parser, and becomes data: commits, each with the files that it changes and the hunks of each file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from email import message_from_bytes
from email.message import Message
from email.policy import default as mail_policy
from enum import Enum
from io import StringIO
from itertools import chain, pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple, cast

from overlay._features.binary_patch import OPENING, BinaryHunk, BinaryPatchError, read_binary
from overlay._features.model import MODULE_SCOPE, Hunk
from overlay._features.sources import unread
from overlay.errors import UsageError
from overlay.package import length_problem

if TYPE_CHECKING:
    from unidiff.patch import Hunk as DiffHunk
    from unidiff.patch import PatchedFile

#: A change of more bytes than this is refused (the whole of vLLM 0.33.0's Python is 40 million).
MAX_BYTES = 64 * 1024 * 1024

#: A change of more files is refused: all of vLLM 0.33.0 has fewer, and each is written twice.
MAX_FILES = 10_000

#: The line that opens a mail of several: it comes first or behind a blank line, and headers follow.
_MAIL = re.compile(
    # Bounds keep a line that nobody wrote from being looked through again and again.
    rb"^(\A|(?<=\n\n)|(?<=\n\r\n))?From "
    rb"(?:[0-9a-f]{7,64} .*|\S{1,400} [^\n]{0,80}\d\d:\d\d:\d\d[^\n]{0,80} \d{4}.*)\n"
    rb"(?=(?(1)[A-Za-z][\w-]*|From): )",
    re.MULTILINE,
)
#: The headers of a mail that was saved alone, as far as the line that ends them.
_HEADERS = re.compile(rb"(?:[A-Za-z][\w-]*:[^\n]*\n(?:[ \t][^\n]*\n)*)+(?=\r?\n)")
_SENDER = re.compile(rb"^(?:From|Subject): ", re.MULTILINE | re.IGNORECASE)
#: What a mail that is sent on says of the change's own author, as git reads it.
_IN_BODY = re.compile(r"\A\s*^(?:(?:From|Subject|Date): .*\n)+", re.MULTILINE)
_INDEX = re.compile(r"^index (?P<old>(?!0+\.)[0-9a-f]{7,64})\.\.[0-9a-f]{7,64}(?: \d+)?\s*$")
_SUBJECT_PREFIX = re.compile(r"^\s*\[[^\]]*PATCH[^\]]*\]\s*")
#: How the change of a mail begins, behind its words.
_BEGINS = re.compile(
    r"^(?:diff --git |--- (?!\r?$)|Index: |Binary files .+ and .+ differ\r?$)", re.MULTILINE
)
#: Where git names the mode of a file before and after; an index line names one that stays.
_MODE = re.compile(
    r"^(?:(?P<old>old|deleted file) mode|new(?: file)? mode|index \S+) (?P<mode>[0-7]{6})\s*$"
)

#: The mode of a program.
_OF_PROGRAM = re.compile(r"[1357][0-7]{0,2}$")

#: What git and diff date a file with that is not there: the beginning of 1970, in any time zone.
_EPOCH = re.compile(
    r"^(?:19(?:70-01-01|69-12-31)[ T](\d\d):(\d\d):00(?:\.0+)?"
    r" ?([-+])(\d\d):?(\d\d))\s*$"
)
#: A date behind a name, where blanks and no tab part the two.
_DATED = re.compile(r" +(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d.*|\w{3} \w{3} +\d+ [\d:]+ .*\d{4}.*)$")

#: A character of a name between quotes, as git and diff write it.
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"v": b"\v",
    b"f": b"\f",
    b"r": b"\r",
}
#: What git puts before a path on either side, also where it is told to name the sides.
_PREFIX = re.compile(r"^[abciow]/")

#: What was not UTF-8; people read the words of a mail, and only its diff must keep every byte.
_LONE = re.compile("[\ud800-\udfff]")

#: Numbers of a hunk's header that no file has; Python refuses those of more than 4,300 digits. What
#: stands behind the numbers is a line of the file, as git's heading of a hunk, and may have any.
_FAR = re.compile(r"^@@ [-+,\d ]*\d{10}", re.MULTILINE)

#: What diff says of a file that the other folder lacks, where it was not asked for its lines.
_ALONE = "Only in "

#: How many lines a hunk has of the file before and after.
_COUNTS = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")

#: The most characters of a mail's header; the parser takes time with the square of their number.
_MAX_HEADER = 8 * 1024

#: A header that the parser reads for itself, of a mail or of a part of one.
_OF_PARTS = re.compile(
    rb"^(content-[a-z-]+|mime-version):[^\n]*(?:\n[ \t][^\n]*)*", re.MULTILINE | re.IGNORECASE
)


#: How files begin that hold a diff and are no text, each with what helps.
_NO_TEXT_BEGINS = {
    b"\xff\xfe": "UTF-16, as PowerShell writes it: git diff --output=FILE writes bytes",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"\x1f\x8b": "one that gzip packed: unpack it",
    b"\xfd7zXZ": "one that xz packed: unpack it",
    b"BZh": "one that bzip2 packed: unpack it",
    b"PK\x03\x04": "one that zip packed: unpack it",
}

#: What people save in the place of a diff, each with what helps.
_OTHER_FORMS = (
    (rb"^\x1b\[[\d;]*m(diff|---|\+|@@|-)", "the colours of a terminal: git diff --no-color"),
    (rb"^@@@+ -", "a combined diff, as a merge has: git diff COMMIT^ COMMIT"),
    (rb"^@@(?! -\d|@)", "a hunk without the numbers of its lines: diff the two texts"),
    (rb"^\*{3} \d+(,\d+)? \*{4}", "a context diff: make it with diff -u, or git diff"),
    (rb"^\d+(,\d+)?[acd]\d+(,\d+)?\r?\n[<>] ", "a diff without names: make it with diff -u"),
    (rb"^(>+ ?|[ \t]+)(diff --git|--- )", "a diff of quoted or indented lines: get the file"),
    (rb"^ \S.* \| +\d+ [-+]+\r?$", "the summary of a diff: leave out --stat"),
    (rb"^:\d{6} \d{6} ", "the names of a diff: leave out --raw"),
    (rb"^Content-Disposition: attachment", "a mail with no text attached: unpack what is"),
)


class ChangeKind(Enum):
    """What a change does to one file."""

    MODIFIED = "edits"
    ADDED = "adds"
    REMOVED = "removes"
    RENAMED = "renames"
    COPIED = "copies"
    MODE = "changes the mode of"
    BINARY = "replaces the bytes of"
    LINK = "makes a symbolic link of"
    SUBMODULE = "makes a submodule of"
    EMPTY = "shows no change of"
    ALONE = "says only that one of two folders has"


#: The types of what git keeps beside ordinary files, as the first digits of their modes.
_SPECIAL = {"12": ChangeKind.LINK, "16": ChangeKind.SUBMODULE}


@dataclass(frozen=True)
class IncomingFile:
    """One file of a change.

    :ivar path: its path after the change, or before it where the change removes it.
    :ivar old_path: its path before the change where that is another one.
    :ivar names: both as the diff has them, ``a/`` and ``b/`` included; ``None`` for ``/dev/null``.
    :ivar creates: whether its hunk is of a file that is not there; ``path`` may be there even so.
    :ivar dated: whether the dates of the diff say that as well.
    :ivar old_blob: git's id of its bytes before the change, abbreviated or not; ``None`` where the
        diff does not say, or there was no file.
    :ivar hunks: in the order of the file; their scopes are not known and read ``<module>``.
    :ivar line: 1-based line of the source at which its part of the diff begins.
    :ivar source: what errors call the source.
    :ivar mode: the mode that it gives the file, as git writes it; ``None`` where an ordinary file
        of its kind has it.
    :ivar binary: its bytes, where the diff says them in git's form for whole files.
    :ivar new_path: what it is renamed to, where ``path`` is the one before that.
    :ivar crlf: whether its lines end with CRLF where it is new; else they end as the release's do.
    """

    path: str
    kind: ChangeKind
    hunks: tuple[Hunk, ...]
    line: int
    old_path: str | None = None
    old_blob: str | None = None
    source: str = ""
    mode: str | None = None
    names: tuple[str | None, str | None] = (None, None)
    creates: bool = False
    dated: bool = False
    binary: BinaryHunk | None = None
    new_path: str | None = None
    crlf: bool = False

    @property
    def is_new(self) -> bool:
        """Whether the change adds it."""
        return self.kind is ChangeKind.ADDED or (
            self.kind is ChangeKind.BINARY and self.names[0] is None
        )

    @property
    def place(self) -> str:
        """Source and line, as errors begin."""
        return f"{self.source}:{self.line}"


@dataclass(frozen=True)
class Commit:
    """One change: a plain diff, or one mail.

    :ivar subject: its first line without ``[PATCH ...]``; empty for a plain diff.
    """

    files: tuple[IncomingFile, ...]
    subject: str = ""
    message: str = ""
    author: str = ""


def read_changes(data: bytes, name: str) -> tuple[Commit, ...]:
    """The commits in ``data``, in their order; a plain diff is one commit.

    :param name: what errors call the source.
    :raises UsageError: if it holds no diff, is larger than ``MAX_BYTES``, or cannot be parsed; with
        the line where that can be told.
    """
    _require_whole(data, name)
    if _MAIL.match(data):
        starts = [match.start() for match in _MAIL.finditer(data)]
        commits = tuple(_mails(data, starts, name))
    elif _is_mail(data):
        commits = tuple(_mail(data, name, 0))
    else:
        commits = (Commit(_files(_text(data, name, 0), name, 0)),)
    if (count := sum(len(commit.files) for commit in commits)) > MAX_FILES:
        raise UsageError(f"{name}: expected a change of at most {MAX_FILES} files, found {count}")
    if not any(commit.files for commit in commits):
        raise UsageError(
            f"{name}:1: expected a unified diff or mails of `git format-patch`, found "
            f"{_other_form(data) or 'no file that it changes'}"
        )
    return commits


def _other_form(data: bytes | str) -> str | None:
    """What was saved in the place of a diff, with what helps; ``None`` of what nobody knows."""
    if isinstance(data, str):
        data = data.encode(errors="surrogateescape")
    forms = (words for pattern, words in _OTHER_FORMS if re.search(pattern, data, re.MULTILINE))
    return next(forms, None)


def _require_whole(data: bytes, name: str) -> None:
    """Refuse what is too large, was cut off, or was saved by an editor that adds to it."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name}: expected a diff of at most {MAX_BYTES} bytes, found {len(data)}")
    if data.startswith(b"\xef\xbb\xbf"):
        raise UsageError(
            f"{name}:1: expected a diff, found a byte-order mark before it; save it as UTF-8 "
            "without one"
        )
    for begin, what in _NO_TEXT_BEGINS.items():
        if data.startswith(begin):
            raise UsageError(f"{name}: expected a diff as text, found {what}")
    if data and not data.endswith(b"\n"):
        last = data.count(b"\n") + 1
        raise UsageError(
            f"{name}:{last}: expected a newline at the end of the last line, found none: the diff "
            "may be cut off, so get it again"
        )


def _is_mail(data: bytes) -> bool:
    """Whether a text is one mail without the line by which a mailbox parts them."""
    headers = _HEADERS.match(data)
    return headers is not None and _SENDER.search(headers[0]) is not None


def _text(data: bytes, name: str, offset: int) -> str:
    """The text of a diff; bytes that are not UTF-8 are kept, since patched files may hold some."""
    before, nul, _ = data.partition(b"\0")
    if nul:
        line = offset + before.count(b"\n") + 1
        raise UsageError(f"{name}:{line}: expected a text, found a NUL byte")
    return data.decode(errors="surrogateescape")


def _mails(data: bytes, starts: list[int], name: str) -> Iterator[Commit]:
    line = 0
    for start, stop in pairwise([*starts, len(data)]):
        yield from _mail(data[start:stop], name, line)
        line += data.count(b"\n", start, stop)


def _mail(data: bytes, name: str, offset: int) -> list[Commit]:
    """The changes of a mail; ``UsageError`` where the parser does not get through it."""
    try:
        return list(_read_mail(data, name, offset))
    # What the standard library's parser raises on mails that nobody wrote, besides its own errors.
    except (RecursionError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{name}:{offset + 1}: expected a mail of `git format-patch`, found one that cannot be "
            f"read ({type(error).__name__}); save the diff that it holds, and import that"
        ) from error


def _read_mail(data: bytes, name: str, offset: int) -> Iterator[Commit]:
    """The change of a mail, and those of the mails that are attached to it."""
    for match in _OF_PARTS.finditer(data):
        _require_short(match[1].decode(), len(match[0]), name)
    message = message_from_bytes(data, policy=mail_policy)
    parts = [_part(leaf) for leaf in _leaves(message)]
    attached = [part for part in parts[1:] if _MAIL.match(part)]
    raw = b"".join([*parts[:1], *(part for part in parts[1:] if not _MAIL.match(part))])
    # The lines of the body are those of the file unless the mail was encoded for transport.
    body_at = offset + data.count(b"\n") - raw.count(b"\n")
    text = _without_signature(_text(raw, name, body_at))
    begins = _BEGINS.search(text)
    words = _LONE.sub("\N{REPLACEMENT CHARACTER}", text[: begins.start()] if begins else text)
    body_at += words.count("\n")
    words = words.replace("\r\n", "\n")
    body_words = re.split(r"(?m)^---\s*$", words)[0]
    headers = {field: _header(message, field, name) for field in ("Subject", "From")}
    if (own := _IN_BODY.match(body_words)) and len(own[0]) <= _MAX_HEADER:
        headers |= dict(line.split(": ", 1) for line in own[0].strip().splitlines())
        body_words = body_words[own.end() :]
    if begins or not attached:
        yield Commit(
            files=_files(text[begins.start() :], name, body_at) if begins else (),
            subject=_SUBJECT_PREFIX.sub("", " ".join(headers["Subject"].split())),
            message=body_words.strip(),
            author=headers["From"].strip(),
        )
    for part in attached:
        yield from _read_mail(part, name, offset)


def _leaves(message: Message) -> Iterator[Message]:
    """The parts of a mail that may hold its words and its change, in their order.

    A mail of a person has a text, perhaps in HTML as well; ``git format-patch --attach`` puts the
    change into a part of its own.
    """
    for part in message.walk():
        text = part.get_content_maintype() == "text" and part.get_content_subtype() != "html"
        is_patch = str(part.get_filename()).endswith((".patch", ".diff", ".txt"))
        if not part.is_multipart() and (part is message or text or is_patch):
            yield part


def _part(part: Message) -> bytes:
    """The bytes of a part, as UTF-8 where it says that it has another encoding, as git does it."""
    raw = cast("bytes", part.get_payload(decode=True))  # since it has no parts of its own
    if not raw.endswith(b"\n"):
        raw += b"\n"
    try:
        return raw.decode(str(part.get_content_charset())).encode()
    except (LookupError, UnicodeError):  # it says none, or a wrong one
        return raw


def _header(message: Message, field: str, name: str) -> str:
    """A header of a mail, empty where it has none."""
    for key, text in message.raw_items():
        if key.lower() == field.lower():
            _require_short(field, len(text), name)
    return str(message.get(field, ""))


def _require_short(field: str, length: int, name: str) -> None:
    if length > _MAX_HEADER:
        raise UsageError(
            f"{name}: expected a {field} of at most {_MAX_HEADER} characters, found {length}"
        )


def _without_signature(text: str) -> str:
    """The text without git's version at the end of a mail, which looks like a removed line."""
    ends = list(re.finditer(r"^-- ?\r?\n", text, re.MULTILINE))
    if not ends or re.search(r"^(@@|diff --git |\+|---)", text[ends[-1].end() :], re.MULTILINE):
        return text
    return text[: ends[-1].start()]


def _files(text: str, name: str, offset: int) -> tuple[IncomingFile, ...]:
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    if text.count("\n") == text.count("\r\n"):
        text = text.replace("\r\n", "\n")  # the transport did it: git ends its own lines with LF
    if (far := _FAR.search(text)) is not None:
        raise UsageError(
            f"{name}:{offset + text[: far.start()].count(chr(10)) + 1}: expected the numbers of "
            "lines of a file, found one of ten digits or more"
        )
    lines = StringIO(apart := _with_prose_apart(text))
    try:
        parsed = PatchSet(lines)
    except UnidiffParseError as error:
        problem = str(error).strip()
        number = apart[: lines.tell()].count("\n")
        if problem.startswith("Hunk is"):
            problem += ": correct the counts in its header, or get it again"
        if (form := _other_form(text.split("\n")[number - 1])) is not None:
            problem = f"found {form}"
        if any(map(_marks_words, text.split("\n"))):
            problem = "found one of words: leave out --word-diff"
        number += offset
        raise UsageError(f"{name}:{number}: expected a unified diff: {problem}") from error
    raw = text.split("\n")
    files = [_with_bytes(_file(entry, name, offset), entry, raw, name, offset) for entry in parsed]
    return (*files, *_alone(raw, name, offset))


def _alone(lines: Sequence[str], name: str, offset: int) -> Iterator[IncomingFile]:
    """The files of which a diff says only where they are, but for what tools leave there."""
    for number, line in enumerate(lines, offset + 1):
        if not line.startswith(_ALONE):
            continue
        folder, _, file = line.removeprefix(_ALONE).removesuffix("\r").rpartition(": ")
        if folder and file and "/" not in file and unread(file) is None:
            names = (f"{folder}/{file}",) * 2
            path = _PREFIX.sub("", names[0])
            yield IncomingFile(path, ChangeKind.ALONE, (), number, source=name, names=names)


def _with_prose_apart(text: str) -> str:
    """The text with a blank before each line of prose that begins as one of a file's header does.

    A header has two lines, as `patch` and `git apply` read it; before a hunk, one must be there.
    """
    lines = text.split("\n")
    numbers = iter(range(len(lines)))
    before = after = 0
    for at in numbers:
        line = lines[at]
        if before > 0 or after > 0:
            before -= not line.startswith(("+", "\\"))
            after -= not line.startswith(("-", "\\"))
        elif (counts := _COUNTS.match(line)) is not None:
            before, after = (int(number or 1) for number in counts.groups())
        elif line.startswith("--- ") and lines[at + 1].startswith("+++ "):
            next(numbers)
        elif line.startswith(("--- ", "+++ ")) and not lines[at + 1].startswith("@@ -"):
            lines[at] = f" {line}"
    return "\n".join(lines)


def _marks_words(line: str) -> bool:
    """Whether a line has words in the brackets of ``git diff --word-diff``."""
    marks = (("[-", "-]"), ("{+", "+}"))
    return any(end in line.partition(begin)[2] for begin, end in marks)


def _with_bytes(
    file: IncomingFile, entry: PatchedFile, lines: Sequence[str], name: str, offset: int
) -> IncomingFile:
    """A file with the bytes that the diff has of it as a whole, where it has them."""
    if not entry.is_binary_file:
        if file.kind is ChangeKind.EMPTY:
            _require_hunks(file, lines, _line(entry))
        return file
    at = _line(entry)
    while at < len(lines) and not lines[at].startswith(("diff --git ", OPENING)):
        at += 1
    if at >= len(lines) or lines[at] != OPENING:
        # It only says that the files differ.
        return replace(file, kind=ChangeKind.BINARY) if file.kind is ChangeKind.RENAMED else file
    try:
        return replace(file, binary=read_binary(lines, at + 1)[0])
    except BinaryPatchError as error:
        raise UsageError(f"{name}:{offset + error.at + 1}: {error}") from error


def _require_hunks(file: IncomingFile, lines: Sequence[str], at: int) -> None:
    """Refuse a file whose hunks are in a form that nobody reads as such."""
    ends = takewhile(lambda line: not line.startswith("diff --"), lines[at:])
    if (form := _other_form("\n".join(ends))) is not None:
        raise UsageError(f"{file.place}: expected a unified diff of {file.path}, found {form}")


def _file(entry: PatchedFile, name: str, offset: int) -> IncomingFile:
    info = [str(line) for line in entry.patch_info or ()]
    source, target = _paths(entry)
    line = offset + _line(entry)
    place, path = f"{name}:{line}", target or source
    if not path:
        raise UsageError(f"{place}: expected the name of a file, found none before and after")
    if (problem := length_problem(path)) is not None:
        raise UsageError(f"{place}: the path {problem}")
    blobs = next((match for line in info if (match := _INDEX.match(line))), None)
    parts = [(hunk, _lines(hunk, place)) for hunk in entry]
    hunks = tuple(_hunk(hunk, lines, offset) for hunk, lines in parts)
    lines = chain(*(lines for _, lines in parts))
    mode = _new_mode(info)
    first = entry[0] if entry else None
    return IncomingFile(
        path=path,
        kind=_kind(entry, info, hunks, mode),
        hunks=hunks,
        line=line,
        old_path=source if source != target else None,
        old_blob=blobs["old"] if blobs else None,
        source=name,
        mode=mode,
        names=(_name(entry.source_file), _name(entry.target_file)),
        creates=first is not None and not (first.source_start or first.source_length),
        dated=_is_epoch(entry.source_timestamp),
        crlf=_crlf(lines, path, name, offset, is_new=source is None),
    )


def _line(entry: PatchedFile) -> int:
    """Where a file begins: the parser says it of each."""
    return cast("int", entry.diff_line_no)


def _paths(entry: PatchedFile) -> tuple[str | None, str | None]:
    """The paths before and after a change; ``None`` where there is no such file.

    What ``diff -N`` compares with nothing has the date of the epoch.
    """
    source, target = _path(entry.source_file), _path(entry.target_file)
    is_emptied = bool(entry) and not any(hunk.target_length for hunk in entry)
    is_removed = source is not None and is_emptied and _is_epoch(entry.target_timestamp)
    return source, None if is_removed else target


def _is_epoch(date: str | None) -> bool:
    """Whether a date of a diff is that of a file that is not there."""
    if date is None or (match := _EPOCH.match(date)) is None:
        return False
    hours, minutes, sign, zone_hours, zone_minutes = match.groups()
    shift = int(sign + zone_hours) * 60 + int(sign + zone_minutes)
    return (int(hours) * 60 + int(minutes) - shift) % (24 * 60) == 0


def _kind(
    entry: PatchedFile, info: Sequence[str], hunks: Sequence[Hunk], mode: str | None
) -> ChangeKind:
    """What a change does to a file, the gravest first: git's modes tell links from files."""
    source, target = _paths(entry)
    if target is None:
        return ChangeKind.REMOVED
    if mode is not None and mode[:2] in _SPECIAL:
        return _SPECIAL[mode[:2]]
    if any(line.startswith("copy from ") for line in info):
        return ChangeKind.COPIED
    if any(line.startswith(("rename from ", "rename to ")) for line in info):
        return ChangeKind.RENAMED
    if entry.is_binary_file or any(line.startswith("GIT binary patch") for line in info):
        return ChangeKind.BINARY
    if source is None:
        return ChangeKind.ADDED
    if hunks:
        return ChangeKind.MODIFIED  # two names of one file, where it is no rename
    return ChangeKind.EMPTY if mode is None else ChangeKind.MODE


def _new_mode(info: Sequence[str]) -> str | None:
    """The mode that a change gives a file; ``None`` where the file stays or becomes ordinary.

    A plain file, as every text is, needs no word; neither does a program that stays one.
    """
    modes = [match for line in info if (match := _MODE.match(line))]
    old = next((match["mode"] for match in modes if match["old"]), None)
    new = next((match["mode"] for match in modes if not match["old"]), None)
    if new is None or new[:2] in _SPECIAL:
        return new
    if old is not None:
        return None if old == new else new
    is_new = any(line.startswith("new file mode ") for line in info)
    return new if is_new and _OF_PROGRAM.search(new) else None


def _crlf(lines: Iterable[_Line], path: str, name: str, offset: int, *, is_new: bool) -> bool:
    """Whether the lines end with CRLF; a change of ends or of the encoding is refused.

    No hunk carries one, and a new file has one kind.
    """
    expected: bool | None = None
    for line in lines:
        place = f"{name}:{offset + line.at}"
        if line.text.startswith("\ufeff") and not is_new:
            raise UsageError(
                f"{place}: expected lines without one, found a byte-order mark; a feature does "
                "not change the encoding of a file"
            )
        crlf = line.text.endswith("\r")
        if line.unfinished and (is_new or not crlf):
            continue  # a line without an end of its own
        expected = crlf if expected is None else expected
        if crlf is not expected:
            ends = ("LF", "CRLF")
            raise UsageError(
                f"{place}: expected lines that end with {ends[expected]} in {path}, found one that "
                f"ends with {ends[crlf]}; a feature does not change line ends"
            )
    return bool(expected)


def _path(text: str) -> str | None:
    """The path in a header of a diff, without ``a/`` or ``b/``; ``None`` for ``/dev/null``."""
    name = _name(text)
    return None if name is None else _PREFIX.sub("", name)


def _name(text: str) -> str | None:
    """The name in a header of a diff as its author's files have it; ``None`` for ``/dev/null``."""
    name = text.removesuffix("\r")  # as git and patch read it
    if len(name) > 1 and name[0] == name[-1] == '"':
        raw = name[1:-1].encode(errors="surrogateescape")
        name = _ESCAPED.sub(_unescaped, raw).decode(errors="surrogateescape")
    else:
        name = _DATED.sub("", name)
        if "/" not in name:
            name = name.replace("\\", "/")  # as a diff of Windows has it
    return None if name == "/dev/null" else name


def _unescaped(match: re.Match[bytes]) -> bytes:
    """The byte that an escape of a quoted name is."""
    escape = match[1]
    return bytes([int(escape, 8)]) if len(escape) == 3 else _ESCAPES.get(escape, escape)


class _Line(NamedTuple):
    """A line of a hunk; :ivar unfinished: whether it has no end; :ivar at: its number."""

    op: str
    text: str
    at: int
    unfinished: bool = False


def _lines(hunk: DiffHunk, place: str) -> list[_Line]:
    """The lines of a hunk, without the empty ones behind it, which the parser puts into it."""
    if not hunk or hunk[0].line_type not in (" ", "-", "+"):
        raise UsageError(f"{place}: expected hunks that begin with a line of the file, found none")
    lines: list[_Line] = []
    for line in hunk:
        if line.line_type == "\\":
            lines[-1] = lines[-1]._replace(unfinished=True)
        elif line.line_type:
            at = cast("int", line.diff_line_no)
            lines.append(_Line(line.line_type, line.value.removesuffix("\n"), at))
    return lines


def _hunk(hunk: DiffHunk, lines: Sequence[_Line], offset: int) -> Hunk:
    unfinished = {line.op for line in lines if line.unfinished}
    return Hunk(
        MODULE_SCOPE,
        tuple(
            # Without an end, the last line of a new file is as it is.
            (op, text if ends_file and not hunk.source_length else text.removesuffix("\r"))
            for op, text, _, ends_file in lines
        ),
        # Of no lines at all a diff names the line before them.
        hunk.source_start + (not hunk.source_length),
        offset + lines[0].at - 1,
        pre_unfinished=not unfinished.isdisjoint(" -"),
        post_unfinished=not unfinished.isdisjoint(" +"),
        heading=hunk.section_header.strip(),
    )
