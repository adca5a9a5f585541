"""Commits of a checkout, drawn at random: each is a mail between two releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.commits import draw_commits
from bench.drawn_changes import OWN, judge, judge_own, owns
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.errors import UsageError
from tests.support.git_repository import Repository, needs_git
from tests.support.patches import MemoryTree

pytestmark = needs_git

PATH = "vllm/v1/work.py"
START = "import os\n\n\ndef work(x):\n    start(x)\n    first = os.sep\n    return first\n"
MIDDLE = START.replace("import os\n", "import os\nimport sys\n")
ADDED = MIDDLE.replace("    return", "    total = count(first)\n    log(total)\n    return")
LATER = ADDED.replace("start(x)", "start(x, sys.path)")
RELEASES = {"0.21.0": START, "0.22.0": LATER, "0.23.0": LATER + "\n\nlast = 1\n"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    upstream = Repository.create(tmp_path / "upstream")
    many = {f"vllm/many_{number}.py": b"x = 1\n" for number in range(5)}
    upstream.commit("Start", {PATH: START.encode(), **many})
    upstream.commit("Many modules", {PATH: MIDDLE.encode(), **dict.fromkeys(many, b"x = 2\n")})
    upstream.commit("Count (#12)", {PATH: ADDED.encode(), "tests/test_work.py": b"y = 1\n"})
    upstream.commit("No module", {"README.md": b"Read.\n"})
    return upstream.folder


def test_a_commit_is_drawn_as_a_mail_with_its_date(checkout: Path) -> None:
    texts = ReleaseTexts(tuple(RELEASES), lambda name: MemoryTree({PATH: RELEASES[name].encode()}))
    (change,) = draw_commits(texts, checkout, 9, 1)
    assert (change.path, change.older, change.newer) == (PATH, "0.21.0", "0.22.0")
    assert (change.before, change.after) == (MIDDLE.encode(), ADDED.encode())
    for data in (change.diff, change.plain):
        (mail,) = read_changes(data, "mail")
        assert mail.subject == "Count (#12)"
        assert b"3 Nov 2026" in data
        assert [file.path for file in mail.files] == [PATH]
        assert (mail.files[0].old_blob is None) is (data == change.plain)


def test_commits_are_judged_as_other_changes_are(checkout: Path) -> None:
    texts = ReleaseTexts(tuple(RELEASES), lambda name: MemoryTree({PATH: RELEASES[name].encode()}))
    sample = draw_commits(texts, checkout, 9, 1)
    for ids in (True, False):
        counts = judge(sample, texts, ids=ids)["counts"]
        assert counts["imported"] == 1
        assert counts["first: upstreamed"] == 1
        assert not [key for key in counts if key.startswith("wrong")]
    for kind in OWN:
        counts = judge_own(owns(sample, kind, 3, 1), texts)["counts"]
        assert counts["imported"] == 1
        assert not [key for key in counts if key.startswith("wrong")]


def test_what_is_not_a_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a checkout of git"):
        draw_commits(ReleaseTexts((), lambda _: MemoryTree({})), tmp_path / "none", 9, 1)
