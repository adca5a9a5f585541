"""The recording as files: one a part, which people can read and ``git diff`` can show.

A file is a list of answers: ``=== NAME``, then the exit status and what was written to standard
output (``|``) and to standard error (``!``), then what became of files (``+``, ``~``, ``-`` with a
digest).  A text that an earlier answer of the file has already is named and not repeated.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

#: The folder of the recording.
FOLDER = Path(__file__).parent / "answers"

_NAME, _SAME, _LONG = "=== ", "same as ", "sha256 "

#: Of longer texts only the digest is kept.
MOST_LINES = 400

#: A shorter text is repeated: a name would not be shorter.
_FEWEST_LINES = 3

#: The marks of texts: standard output, standard error, a receipt.
_STREAMS = "|!r"

Answers = Mapping[str, list[str]]


def path_of(part: str, folder: Path = FOLDER) -> Path:
    """The file of a part."""
    return folder / f"{part}.txt"


def encode(answers: Answers) -> str:
    """The text of a file."""
    first: dict[tuple[str, ...], str] = {}
    lines = []
    for name, answer in answers.items():
        lines.append(f"{_NAME}{name}")
        for text in _texts(shortened(answer)):
            known = first.setdefault(text, name)
            if known != name and len(text) >= _FEWEST_LINES and text[0][:1] in _STREAMS:
                lines.append(f"{text[0][:1]} {_SAME}{known}")
            else:
                lines += text
    return "".join(f"{line}\n" for line in lines)


def decode(text: str) -> dict[str, list[str]]:
    """The answers of a file.

    :raises ValueError: if it is not one.
    """
    answers: dict[str, list[str]] = {}
    answer: list[str] = []
    for line in text.splitlines():
        mark, rest = line[:1], line[2:]
        if line.startswith(_NAME):
            answer = answers[line.removeprefix(_NAME)] = []
        elif rest.startswith(_SAME) and rest.removeprefix(_SAME) in answers:
            texts = _texts(answers[rest.removeprefix(_SAME)])
            answer += next(known for known in texts if known[0][:1] == mark)
        elif not answers:
            raise ValueError(f"expected {_NAME!r} and a name, found {line!r}")
        else:
            answer.append(line)
    return answers


def shortened(answer: list[str]) -> list[str]:
    """An answer with the digests of texts that are too long to be kept."""
    lines = []
    for text in _texts(answer):
        if len(text) > MOST_LINES and text[0][:1] in _STREAMS:
            digest = hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]
            lines.append(f"{text[0][:1]} {_LONG}{digest} of {len(text)} lines")
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
