"""One ``.patch`` file: DEP-3 headers, then a unified diff of one path.

Line numbers in it are hints.  What places a hunk is its section heading (the scope) and its
pre-image, so both are checked here, and every error is given its line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import date

from overlay.errors import PatchFormatError, PatchFormatErrors
from overlay.features.model import MODULE_SCOPE, Hunk, Patch
from overlay.package import parse_release, path_problem

REQUIRED_HEADERS = ("Description", "Origin", "Last-Update")

KNOWN_HEADERS = (
    *REQUIRED_HEADERS,
    *("Bug", "Forwarded", "Applied-Upstream", "Author", "Reviewed-by", "Acked-by"),
    *("Base", "Base-Has", "Ported-From", "Signed-off-by"),
)


_HEADER = re.compile(r"^(?P<name>[A-Za-z][A-Za-z0-9-]*):[ \t]*(?P<value>.*)$")

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?:[ \t](?P<heading>.*))?$")

_SCOPE = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")

_FORBIDDEN = (
    ("rename ", "it renames a file"),
    ("copy ", "it copies a file"),
    ("similarity index", "it renames or copies a file"),
    ("dissimilarity index", "it rewrites a file"),
    ("old mode", "it changes a file's mode"),
    ("new mode", "it changes a file's mode"),
    ("new file mode", "it creates a file; put the module under files/ instead"),
    ("deleted file mode", "it deletes a file"),
    ("GIT binary patch", "it is binary"),
    ("Binary files ", "it is binary"),
)


def parse_patch(text: str, name: str) -> Patch:
    """Read a patch.

    :param text: the content of the file.
    :param name: the file relative to its patches folder, for messages and reports.
    :raises PatchFormatErrors: with every malformed place.
    """
    reader = _Reader(name, text)
    headers = reader.read_headers()
    path = reader.read_file_header()
    hunks = reader.read_hunks() if path is not None else ()
    if "Base" in headers:
        base_has = tuple(line for line in headers.get("Base-Has", "").split("\n") if line)
        hunks = tuple(replace(hunk, base_has=base_has) for hunk in hunks)
    if reader.errors:
        raise PatchFormatErrors(sorted(reader.errors, key=lambda error: error.line or 0))
    assert path is not None  # no path is an error
    return Patch(name, path, headers, hunks)


@dataclass
class _Body:
    """The lines of one hunk while they are read, with the numbers that its header promises."""

    line: int
    scope: str
    source_line: int
    promised: tuple[int, int]
    lines: list[tuple[str, str]] = field(default_factory=list)
    unfinished: dict[int, int] = field(default_factory=dict)

    def counts(self) -> tuple[int, int]:
        """How many lines of the pre-image and of the post-image have been read."""
        ops = [op for op, _ in self.lines]
        return len(ops) - ops.count("+"), len(ops) - ops.count("-")


class _Reader:
    """Goes through the lines of a patch once, collecting errors."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        pieces = text.split("\n")
        unfinished = pieces[-1] != ""
        if not unfinished:
            pieces.pop()
        # The end of a line is no content: a patch checked out with CRLF says the same.  A carriage
        # return alone stays, for git does not take it for an empty line of context.
        self.lines = [piece if piece == "\r" else piece.removesuffix("\r") for piece in pieces]
        self.at = 0
        self.errors: list[PatchFormatError] = []
        self.misspelt: set[str] = set()  # known headers that were reported as spelt otherwise
        if unfinished:
            self.error(len(pieces), "its last line has no newline; git refuses such a patch")

    def error(self, line: int | None, problem: str) -> None:
        """Note an error at a 1-based line."""
        self.errors.append(PatchFormatError(self.name, line, problem))

    # Headers

    def read_headers(self) -> dict[str, str]:
        """The DEP-3 fields, up to the diff."""
        headers: dict[str, str] = {}
        current: str | None = None
        while self.at < len(self.lines) and not self._diff_begins():
            line, number = self.lines[self.at], self.at + 1
            self.at += 1
            match = _HEADER.match(line)
            if line[:1] in (" ", "\t") and line.strip() and current is not None:
                headers[current] += "\n" + line.strip()
            elif match is not None:
                current = match["name"]
                self._add_header(headers, current, match["value"].strip(), number)
            elif line.strip() not in ("", "---"):
                self.error(
                    number,
                    f"{line!r} is neither a header (Name: value), the continuation of one "
                    "(indented), nor the beginning of the diff (--- a/vllm/...)",
                )
            else:
                current = None
        for required in REQUIRED_HEADERS:
            missing = required not in headers and required not in self.misspelt
            if missing or not headers.get(required, "-").strip():
                self.error(1, f"the header {required} is missing or empty")
        self._check_date(headers.get("Last-Update"))
        self._check_base(headers.get("Base"))
        return headers

    def _add_header(self, headers: dict[str, str], name: str, value: str, number: int) -> None:
        proper = {known.lower(): known for known in KNOWN_HEADERS}.get(name.lower())
        if proper is not None and proper != name:
            self.misspelt.add(proper)
            self.error(number, f"the header {name} is spelt otherwise: write {proper}:")
        elif proper is None and not name.startswith("Bug-"):
            self.error(number, f"unknown header {name}; known are {', '.join(KNOWN_HEADERS)}")
        if name not in headers:
            headers[name] = value
        elif name in ("Bug", "Author", "Reviewed-by", "Acked-by", "Base-Has", "Signed-off-by"):
            headers[name] += "\n" + value
        else:
            self.error(number, f"the header {name} stands twice")

    def _check_date(self, value: str | None) -> None:
        if not value:
            return
        try:
            well_formed = date.fromisoformat(value).isoformat() == value
        except ValueError:
            well_formed = False
        if not well_formed:
            number = next(
                index for index, line in enumerate(self.lines, 1) if line.startswith("Last-Update:")
            )
            self.error(number, f"Last-Update is {value!r}, which is no date (YYYY-MM-DD)")

    def _check_base(self, value: str | None) -> None:
        """A base is a release, so that its text can be had again."""
        if value is None:
            return
        try:
            parse_release(value)
        except ValueError as error:
            lines = enumerate(self.lines, 1)
            number = next(number for number, line in lines if line.startswith("Base:"))
            self.error(number, f"Base: {error}")

    # The diff's own header

    def _diff_begins(self) -> bool:
        line = self.lines[self.at]
        return line.startswith(("diff --git ", "--- ", "+++ ", "@@ ")) or any(
            line.startswith(start) for start, _ in _FORBIDDEN
        )

    def read_file_header(self) -> str | None:
        """The path that the patch is for; ``None`` if it cannot be told."""
        git_line: tuple[int, str] | None = None
        while self.at < len(self.lines):
            line, number = self.lines[self.at], self.at + 1
            if line.startswith(("--- ", "+++ ", "@@ ")):
                break
            self.at += 1
            forbidden = next((why for start, why in _FORBIDDEN if line.startswith(start)), None)
            if forbidden is not None:
                self.error(number, f"a patch only edits one file, and {forbidden}")
            elif line.startswith("diff --git ") and git_line is None:
                git_line = (number, line)
            elif not line.startswith("index ") and (line.strip() or git_line is not None):
                # Behind "diff --git" git takes an empty line for the end of an empty diff.
                self.error(number, f"expected '--- a/vllm/...', found {line!r}")
        if self.at >= len(self.lines):
            if not self.errors:
                self.error(None, "it holds no diff: expected '--- a/vllm/...' after the headers")
            return None
        before, after = self._read_side("---", "a/"), self._read_side("+++", "b/")
        if before is None or after is None:
            return None
        if before != after:
            self.error(self.at, f"it renames {before} to {after}; a patch edits one file in place")
            return None
        if git_line is not None and git_line[1] != f"diff --git a/{before} b/{before}":
            self.error(git_line[0], f"{git_line[1]!r} does not name a/{before} and b/{before}")
        problem = path_problem(before)
        if problem is not None:
            self.error(self.at, f"the path {problem}")
        return before

    def _read_side(self, sign: str, prefix: str) -> str | None:
        """The path behind ``---`` or ``+++``, without its prefix; ``None`` after an error."""
        number = self.at + 1
        line = self.lines[self.at] if self.at < len(self.lines) else ""
        expected = f"'{sign} {prefix}vllm/...'"
        if not line.startswith(sign + " "):
            self.error(number, f"expected {expected}, found {line!r}")
            return None
        self.at += 1
        path = line[4:].split("\t")[0].rstrip()
        if path == "/dev/null":
            what = "creates a file; put the module under files/" if sign == "---" else "deletes one"
            self.error(number, f"a patch only edits one file, and this one {what}")
        elif not path.startswith(prefix):
            self.error(
                number, f"expected {expected}, found {line!r}: the prefix {prefix} is missing"
            )
        else:
            return path[len(prefix) :]
        return None

    # Hunks

    def read_hunks(self) -> tuple[Hunk, ...]:
        """The hunks, up to the end of the file."""
        hunks: list[Hunk] = []
        while self.at < len(self.lines):
            line, number = self.lines[self.at], self.at + 1
            if line.startswith("@@"):
                hunk = self._read_hunk(number)
                if hunk is not None:
                    hunks.append(hunk)
            elif line.startswith(("diff --git ", "--- ")):
                self.error(number, "a second file begins; a patch is for one path")
                return ()
            else:
                self.at += 1
                if any(rest.strip() for rest in self.lines[self.at - 1 :]):
                    self.error(number, f"expected '@@ -... +... @@ scope', found {line!r}")
                    return ()
        if not hunks and not self.errors:
            self.error(self.at, "it holds no hunk: expected '@@ -... +... @@ scope'")
        return tuple(hunks)

    def _read_hunk(self, number: int) -> Hunk | None:
        match = _HUNK.match(self.lines[self.at])
        self.at += 1
        if match is None:
            self.error(
                number,
                f"expected '@@ -line,count +line,count @@ scope', found {self.lines[number - 1]!r}",
            )
            self._skip_body()
            return None
        promised = (int(match[2] or 1), int(match[4] or 1))
        scope = (match["heading"] or "").strip()
        body = _Body(number, scope, int(match[1]), promised)
        self._check_scope(body)
        self._read_body(body)
        return self._finish(body)

    def _check_scope(self, body: _Body) -> None:
        if body.scope == MODULE_SCOPE or _SCOPE.match(body.scope):
            return
        found = f"found {body.scope!r}" if body.scope else "found nothing"
        self.error(
            body.line,
            "expected the scope behind the second @@ (a qualified name such as "
            f"Class.method, or {MODULE_SCOPE} for anywhere in the file), {found}",
        )

    def _body_ends(self, body: _Body) -> bool:
        """Whether the line at hand is no longer a line of the hunk."""
        line = self.lines[self.at]
        if line.startswith(("@@", "diff --git ")):
            return True
        if body.counts() != body.promised:
            return line[:1] not in (" ", "+", "-", "\\", "")
        following = self.lines[self.at + 1 : self.at + 2]
        second_file = line.startswith("--- ") and (following or [""])[0].startswith("+++ ")
        nothing_left = not any(rest.strip() for rest in self.lines[self.at :])
        return second_file or nothing_left or line[:1] not in (" ", "+", "-", "\\")

    def _read_body(self, body: _Body) -> None:
        while self.at < len(self.lines) and not self._body_ends(body):
            line, number = self.lines[self.at], self.at + 1
            self.at += 1
            if line.startswith("\\"):
                if not body.lines or len(body.lines) - 1 in body.unfinished:
                    self.error(number, f"{line!r} follows no line of the hunk")
                else:
                    body.unfinished[len(body.lines) - 1] = number
            else:
                # Editors that strip trailing blanks leave an empty context line empty.
                body.lines.append((line[:1] or " ", line[1:]))

    def _skip_body(self) -> None:
        while self.at < len(self.lines) and not self.lines[self.at].startswith(("@@", "diff ")):
            self.at += 1

    def _finish(self, body: _Body) -> Hunk | None:
        """The hunk, or ``None`` after errors that leave none."""
        known = len(self.errors)
        if body.counts() != body.promised:
            (said_pre, said_post), (pre, post) = body.promised, body.counts()
            self.error(
                body.line,
                f"the header promises {said_pre} lines before and {said_post} after, the hunk "
                f"has {pre} and {post}: @@ -{body.source_line},{pre} +...,{post} @@",
            )
        last = {
            side: max((i for i, (op, _) in enumerate(body.lines) if op != other), default=None)
            for side, other in (("pre", "+"), ("post", "-"))
        }
        for index, number in body.unfinished.items():
            op = body.lines[index][0]
            sides = {" ": ("pre", "post"), "-": ("pre",), "+": ("post",)}[op]
            if any(last[side] != index for side in sides):
                self.error(number, "the line before it is not the last of its side of the hunk")
        hunk = Hunk(
            body.scope,
            tuple(body.lines),
            body.source_line,
            body.line,
            pre_unfinished=last["pre"] in body.unfinished,
            post_unfinished=last["post"] in body.unfinished,
        )
        if not hunk.pre:
            self.error(body.line, "its pre-image is empty: give it lines of context to stand by")
        elif not hunk.post:
            self.error(
                body.line,
                "its post-image is empty, so nothing could show that it is applied: give it "
                "lines of context",
            )
        elif (hunk.pre, hunk.pre_unfinished) == (hunk.post, hunk.post_unfinished):
            self.error(body.line, "it changes nothing (the ends of lines are no content)")
        elif not (hunk.pre_unfinished or hunk.post_unfinished) and _stands_in(hunk.post, hunk.pre):
            self.error(
                body.line,
                "its post-image stands in its pre-image, so nothing could show that it is "
                "applied: give it context on both sides of the lines that it removes",
            )
        return hunk if len(self.errors) == known else None


def _stands_in(image: tuple[str, ...], lines: tuple[str, ...]) -> bool:
    """Whether the lines of an image stand together somewhere in the lines."""
    size = len(image)
    return any(lines[at : at + size] == image for at in range(len(lines) - size + 1))
