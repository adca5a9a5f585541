"""``git apply`` as a peer: what it makes of a patch, and what it had to guess."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from overlay._features.model import Hunk
from overlay._features.patch_file import parse_patch
from overlay.errors import PatchFormatErrors
from overlay.package import parse_release
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.planning.text import SourceText
from overlay.results import State
from tests.support.generated import places
from tests.support.patches import HEADERS, MemoryTree, feature

PATH = "vllm/peer.py"
_HEADING = re.compile(rb"^(@@ -\S+ \+\S+ @@).*$", re.MULTILINE)
_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}


def git_diff(folder: Path, before: bytes, after: bytes) -> bytes:
    """The diff of two contents as git writes it, its headings replaced by ``<module>``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "before").write_bytes(before)
    (folder / "after").write_bytes(after)
    done = _git(folder, "diff", "--no-index", "-U3", "--no-color", "before", "after")
    assert done.returncode == 1, done.stderr
    hunks = done.stdout[done.stdout.index(b"\n@@ ") + 1 :]
    return b"--- a/%s\n+++ b/%s\n" % (PATH.encode(), PATH.encode()) + _HEADING.sub(
        rb"\1 <module>", hunks
    )


def git_apply(folder: Path, target: bytes, diff: bytes) -> bytes | None:
    """The file once git has applied the diff; ``None`` where git refuses."""
    path = folder / PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(target)
    done = _git(folder, "apply", "--whitespace=nowarn", "-", data=diff)
    return path.read_bytes() if done.returncode == 0 else None


def _git(folder: Path, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **_ENVIRONMENT, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    return subprocess.run(
        ["git", "-c", "core.autocrlf=false", *arguments],
        cwd=folder,
        input=data,
        capture_output=True,
        env=environment,
        check=False,
        timeout=60,
    )


@dataclass
class Comparison:
    """What came of many cases, told apart by who did what; ``shown`` holds the telling ones."""

    outcomes: Counter[str] = field(default_factory=Counter)
    shown: dict[str, list[str]] = field(default_factory=dict)
    syntax: Syntax = field(default_factory=Syntax)

    def add(self, name: str, folder: Path, target: bytes, diff: bytes) -> None:
        """Compare one case.

        :raises AssertionError: where the results differ without a reason that is ours to have.
        """
        theirs = git_apply(folder, target, diff)
        try:
            hunks = parse_patch(HEADERS + diff.decode(), name).hunks
        except PatchFormatErrors as error:
            problem = error.errors[0].problem
            assert "its post-image" in problem or "changes nothing" in problem, (name, problem)
            self._note("no patch may hold it", name, problem)
            return
        planned = plan(
            [feature((PATH, hunks))],
            MemoryTree({PATH: target}),
            parse_release("0.26.0"),
            None,
            self.syntax,
        )
        ours = planned.changes[0].after if planned.changes else None
        file = planned.features[0].files[0]
        whys = "; ".join(
            map(str, filter(None, [file.reason, *(hunk.reason for hunk in file.hunks)]))
        )
        exact = [_occurrences(hunk, target) for hunk in hunks]
        once = all(len(found) == 1 for found in exact)
        if theirs is not None and once:
            self._both_know(name, theirs, ours, file.state, whys)
        elif theirs is not None:
            assert ours is None, (name, "git guessed, and so did we")
            assert any(len(found) > 1 for found in exact), (name, "git applied what is not there")
            counts = "/".join(str(len(found)) for found in exact if len(found) != 1)
            self._note(f"git guessed, we say {file.state.value}", name, f"{counts} places: {whys}")
        elif ours is not None:
            self._only_ours(name, folder, target, ours, diff)
        elif file.state is State.UPSTREAMED:
            self._note("git refuses, we say upstreamed", name, "")
        else:
            self._note(f"both refuse, we say {file.state.value}", name, whys)

    def add_scoped(self, name: str, target: bytes, after: bytes, diff: bytes) -> None:
        """Apply a diff with the headings that it has; no peer but what it was made from."""
        try:
            hunks = parse_patch(HEADERS + diff.decode(), name).hunks
        except PatchFormatErrors as error:
            self._note("no patch may hold it", name, error.errors[0].problem)
            return
        planned = plan(
            [feature((PATH, hunks))],
            MemoryTree({PATH: target}),
            parse_release("0.26.0"),
            None,
            self.syntax,
        )
        file = planned.features[0].files[0]
        if planned.changes:
            assert planned.changes[0].after == after, name
            self._note("same bytes", name, "")
        else:
            why = str(next((hunk.reason for hunk in file.hunks if hunk.reason), file.reason))
            told = "found them" not in why and "not to be recognised once applied"
            self._note(told or f"we say {file.state.value}", name, why)

    def _both_know(
        self, name: str, theirs: bytes, ours: bytes | None, state: State, whys: str
    ) -> None:
        """Git applied each hunk at the only place of its pre-image."""
        if ours is not None:
            assert ours == theirs, name
            self._note("same bytes", name, "")
        elif "does not compile" in whys or "is not Python" in whys:
            self._note("git leaves what does not compile", name, whys)
        elif "once it is applied" in whys:
            self._note("git would apply it again and again", name, whys)
        else:
            # A pre-image inside a post-image: git inserts the same lines again.
            assert state in (State.UPSTREAMED, State.PARTIAL), (name, state, whys)
            self._note(f"git applies again, we say {state.value}", name, whys)

    def _only_ours(self, name: str, folder: Path, target: bytes, ours: bytes, diff: bytes) -> None:
        """Git ties a hunk without context on one side to that end of the file; we do not."""
        loose = folder / "loose"
        path = loose / PATH
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(target)
        done = _git(loose, "apply", "--unidiff-zero", "--whitespace=nowarn", "-", data=diff)
        assert done.returncode == 0, (name, done.stderr)
        assert path.read_bytes() == ours, name
        self._note("git wants it at the end of the file", name, "")

    def _note(self, outcome: str, name: str, detail: str) -> None:
        self.outcomes[outcome] += 1
        self.shown.setdefault(outcome, []).append(f"{name}: {detail}" if detail else name)

    def report(self, title: str, each: int = 3) -> str:
        """The outcomes by number, and some cases of each in which we and git part."""
        lines = [f"{title}: {sum(self.outcomes.values())} cases"]
        for outcome, count in self.outcomes.most_common():
            lines.append(f"  {count:5}  {outcome}")
            if outcome != "same bytes":
                lines += [f"           e.g. {case[:300]}" for case in self.shown[outcome][:each]]
        return "\n".join(lines)


def _occurrences(hunk: Hunk, target: bytes) -> list[int]:
    lines = SourceText.from_bytes(target).lines
    return places(hunk.pre, lines, [range(len(lines))])
