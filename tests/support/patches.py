"""Builders of patches, features and trees in memory or in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlay._features.model import (
    MODULE_SCOPE,
    AddedFile,
    Feature,
    Hunk,
    Patch,
    Topic,
    UpstreamTest,
    Variant,
)
from overlay.package import VLLM, ReleaseRange

HEADERS = "Description: A test\nOrigin: the tests\nLast-Update: 2026-11-20\n\n"

#: A well-formed patch with everything that a patch file may have.
GOOD_PATCH = """\
Description: Call the graphs
 before the first pass
Origin: vllm-overlay
Bug: https://example.invalid/1
Bug-Team: https://example.invalid/2
Forwarded: not-needed
Last-Update: 2026-11-20
---
diff --git a/vllm/a.py b/vllm/a.py
index 1234567..89abcde 100644
--- a/vllm/a.py\t2026-11-20 10:00:00
+++ b/vllm/a.py
@@ -10,4 +10,5 @@ A.f
 one

-two
+2
+3
 four
@@ -40 +41 @@ <module>
-last
\\ No newline at end of file
+last
"""


class MemoryTree:
    """A tree of files in memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)


def hunk(lines: Iterable[str], scope: str = MODULE_SCOPE, **ends: Any) -> Hunk:
    """A hunk from lines such as ``" context"``, ``"-gone"`` and ``"+new"``."""
    return Hunk(scope, tuple((line[:1], line[1:]) for line in lines), 1, 1, **ends)


def reverse(given: Hunk) -> Hunk:
    """The hunk that undoes another one."""
    swap = {"+": "-", "-": "+", " ": " "}
    return Hunk(
        given.scope,
        tuple((swap[op], text) for op, text in given.lines),
        given.source_line,
        given.patch_line,
        given.post_unfinished,
        given.pre_unfinished,
    )


def patch_text(path: str, *hunks: Hunk, headers: str = HEADERS) -> str:
    """A well-formed patch file."""
    out = [headers, f"--- a/{path}\n+++ b/{path}\n"]
    for each in hunks:
        out.append(f"@@ -1,{len(each.pre)} +1,{len(each.post)} @@ {each.scope}\n")
        out += [f"{op}{text}\n" for op, text in each.lines]
    return "".join(out)


def feature(
    *patches: tuple[str, Sequence[Hunk]],
    id: str = "demo",  # noqa: A002 - named as in feature.toml
    releases: str = "0.20.0..0.33.0",
    added: Mapping[str, bytes] | None = None,
    tests: Sequence[tuple[str, str, str]] = (),
) -> Feature:
    """A feature with one topic for each ``(path, hunks)``, for all of its releases."""
    span = ReleaseRange.parse(releases, VLLM)
    topics = [
        topic(f"{number:02}-topic", {releases: (path, hunks)}, id)
        for number, (path, hunks) in enumerate(patches, 1)
    ]
    files = tuple(AddedFile(path, content) for path, content in (added or {}).items())
    upstream = tuple(UpstreamTest(*test) for test in tests)
    url = "https://example.invalid/1"
    return Feature(id, "t", "w", url, span, upstream, tuple(topics), files, "test", id)


# `id` as in feature.toml.
def topic(name: str, variants: Mapping[str, tuple[str, Sequence[Hunk]]], id: str = "demo") -> Topic:  # noqa: A002
    """A topic with a variant for each range."""
    return Topic(
        name,
        tuple(
            Variant(
                ReleaseRange.parse(releases, VLLM),
                Patch(f"{id}/{name}/{releases}.patch", path, {}, tuple(hunks)),
            )
            for releases, (path, hunks) in variants.items()
        ),
    )


def write_feature(
    folder: Path,
    files: Mapping[str, str | bytes],
    id: str = "demo",  # noqa: A002 - as above
    releases: str = "0.20.0..0.33.0",
    toml: str = "",
) -> Path:
    """Write a feature's folder with a well-formed ``feature.toml``; return it."""
    lines = [
        f'id = "{id}"',
        'title = "A test"',
        'why = "To test."',
        'upstream = "https://example.invalid/1"',
        f'releases = "{releases}"',
        toml,
    ]
    contents: dict[str, str | bytes] = {"feature.toml": "\n".join(lines) + "\n", **files}
    for name, content in contents.items():
        path = folder / id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / id
