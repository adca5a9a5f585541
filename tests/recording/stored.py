"""The recording as files, one a part, which people can read and ``git diff`` can show.

A file is a list of answers: ``=== NAME``, then the exit status and what was written to standard
output (``|``) and to standard error (``!``), then what became of files (``+``, ``~``, ``-`` with a
digest).  Lines that an earlier answer of the file has are not repeated: ``@ 12 3 NAME`` stands for
twelve lines of that answer from its line 3 on, the exit status being line 0.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

#: The folder of the recording.
FOLDER = Path(__file__).parent / "answers"

#: The parts that are in one file, under names that begin with the part's.
_SHARED = "releases"

_NAME, _AS_IN = "=== ", "@ "

#: Of longer texts only the digest is kept.
MOST_LINES = 400

#: What is repeated where it is shorter: lines, and characters.
_FEWEST_LINES, _FEWEST_CHARACTERS = 3, 90

#: The marks of standard output and of standard error.
_STREAMS = "|!"

Answers = Mapping[str, list[str]]


def path_of(part: str, folder: Path = FOLDER) -> Path:
    """The file of a part; releases, which are alike, share one."""
    room, _, _ = part.partition("/")
    return folder / f"{room if room == _SHARED else part}.txt"


def load(folder: Path = FOLDER) -> dict[str, dict[str, list[str]]]:
    """All that is stored: part -> name -> lines."""
    found: dict[str, dict[str, list[str]]] = {}
    for file in sorted(folder.rglob("*.txt")):
        part = file.relative_to(folder).with_suffix("").as_posix()
        for name, answer in decode(file.read_text()).items():
            place, rest = (part, name) if part != _SHARED else name.split(": ", 1)
            found.setdefault(place, {})[rest] = answer
    return found


def save(recorded: Mapping[str, Answers], folder: Path = FOLDER) -> None:
    """Store some parts, and leave the others as they are."""
    files: dict[Path, dict[str, list[str]]] = {}
    for part, answers in sorted({**load(folder), **recorded}.items()):
        file = path_of(part, folder)
        before = "" if file.with_suffix("") == folder / part else f"{part}: "
        files.setdefault(file, {}).update({f"{before}{name}": a for name, a in answers.items()})
    for file, contents in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(encode(contents))


def encode(answers: Answers) -> str:
    """The text of a file."""
    written: dict[str, list[str]] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    lines = []
    for name, whole in answers.items():
        answer = shortened(whole)
        lines.append(f"{_NAME}{name}")
        at = 0
        while at < len(answer):
            known = places.get(answer[at], [])
            runs = [
                (_run(written[other], start, answer, at), other, start) for other, start in known
            ]
            count, other, start = max(runs, key=lambda run: run[0], default=(0, "", 0))
            size = sum(map(len, answer[at : at + count]))
            if count >= _FEWEST_LINES and size >= _FEWEST_CHARACTERS:
                lines.append(f"{_AS_IN}{count} {start} {other}")
                at += count
            else:
                lines.append(answer[at])
                at += 1
        written[name] = answer
        for number, line in enumerate(answer):
            places.setdefault(line, []).append((name, number))
    return "".join(f"{line}\n" for line in lines)


def _run(old: list[str], start: int, new: list[str], at: int) -> int:
    """How many lines are equal from two places on."""
    pairs = zip(old[start:], new[at:], strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(len(old) - start, len(new) - at)
    )


def decode(text: str) -> dict[str, list[str]]:
    """The answers of a file.

    :raises ValueError: if it is not one.
    """
    answers: dict[str, list[str]] = {}
    answer: list[str] | None = None
    for line in text.splitlines():
        if line.startswith(_NAME):
            answer = answers[line.removeprefix(_NAME)] = []
        elif answer is None:
            raise ValueError(f"expected {_NAME!r} and a name, found {line!r}")
        elif line.startswith(_AS_IN):
            count, start, name = line.removeprefix(_AS_IN).split(" ", 2)
            answer += answers[name][int(start) : int(start) + int(count)]
        else:
            answer.append(line)
    return answers


def shortened(answer: list[str]) -> list[str]:
    """An answer with the digests of texts that are too long to be kept."""
    lines = []
    for text in _texts(answer):
        if len(text) > MOST_LINES and text[0][:1] in _STREAMS:
            digest = hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]
            lines.append(f"{text[0][:1]} sha256 {digest} of {len(text)} lines")
        else:
            lines += text
    return lines


def differences(old: Answers, new: Answers, part: str) -> Iterator[str]:
    """A unified diff for each answer that is not as it was recorded."""
    for name in [*old, *(name for name in new if name not in old)]:
        before = old.get(name, ["not recorded"])
        after = shortened(new[name]) if name in new else ["not answered any more"]
        if before != after:
            yield f"=== {part}: {name}"
            yield from difflib.unified_diff(before, after, "recorded", "now", lineterm="", n=2)


def _texts(answer: Iterable[str]) -> list[tuple[str, ...]]:
    """An answer in its parts: lines with the same mark."""
    texts: list[list[str]] = []
    for line in answer:
        if texts and texts[-1][0][:1] == line[:1]:
            texts[-1].append(line)
        else:
            texts.append([line])
    return [tuple(text) for text in texts]
