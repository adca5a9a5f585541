"""Laws of the way out: a feature that is exported and imported again is the same feature."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.model import Feature
from overlay._features.patch_headers import author
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.mailbox import mail
from overlay.authoring.writing import check_folder
from overlay.planning.planner import plan
from overlay.results import Change
from tests.authoring.test_composing import changes
from tests.authoring.test_import_laws import PATH, RELEASE, applied, git_diff, imported
from tests.support.patches import MemoryTree, feature, hunk

LINES = st.text(st.sampled_from("aé -:#<>|From"), max_size=20).map(str.strip)
WORDS = st.lists(
    LINES | st.sampled_from(["---", "diff --git a b", "From me", "Subject: x", "Bug: y", "-- "]),
    min_size=1,
    max_size=5,
).map(lambda lines: "\n".join(lines).strip())
AUTHORS = st.sampled_from(
    [
        "Ada Lovelace <ada@example.org>",
        "Zoë <z@example.org>",
        "Zoë <zoë@example.org>",
        '"A, B" <ab@example.org>',
    ]
)


def change_of(feature: Feature, base: bytes) -> Change:
    planned = plan([feature], MemoryTree({PATH: base}), Version(RELEASE))
    (change,) = planned.changes
    return change


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(changes(), WORDS, AUTHORS, st.sampled_from(["", "https://example.org/pull/1"]))
def test_importing_what_was_exported_gives_the_same_feature(
    texts: tuple[bytes, bytes], why: str, owner: str, upstream: str
) -> None:
    before, after = texts
    assume(before != after)
    made = imported(git_diff(before, after, ids=False), before)
    assume(made is not None)
    assert made is not None
    assert made.folder is not None
    text = replace(made.folder.text, why=why, title="[Core] Zähle mehr (#12)", upstream=upstream)
    first = check_folder(replace(made.folder, text=text))
    first = with_author(first, owner)
    box = mail(first, Version(RELEASE), [change_of(first, before)], 1, 1)
    again = prepare(
        read_changes(box, "x.mbox"),
        first.id,
        ReleaseTexts([RELEASE], lambda _: MemoryTree({PATH: before})),
        source="x.mbox",
        verbatim=box,
        today="2026-11-22",
    )
    assert again.folder is not None
    second = check_folder(again.folder)
    assert applied(again, before) == after
    assert second.title == first.title
    assert second.why.split() == first.why.split()
    assert second.upstream == (upstream or "https://github.com/vllm-project/vllm/pull/12")
    (topic,) = second.topics
    assert author(topic.variants[0].patch.headers) == owner


def with_author(feature: Feature, owner: str) -> Feature:
    """The feature with an author of each patch."""
    topics = tuple(
        topic._replace(
            variants=tuple(
                variant._replace(
                    patch=variant.patch._replace(headers={**variant.patch.headers, "Author": owner})
                )
                for variant in topic.variants
            )
        )
        for topic in feature.topics
    )
    return replace(feature, topics=topics)


@pytest.mark.parametrize("space", ["\n", "\r", "\n\n", "\r\n", "\x85", "\u2028", "  "])
@pytest.mark.parametrize("first", ["Count", "Zähle"])
def test_a_title_of_several_lines_makes_no_header_of_its_own(space: str, first: str) -> None:
    """A stranger wrote it: a mail that is sent goes to nobody else by it."""
    change = Change("vllm/a.py", b"a = 1\n", b"a = 2\n")
    made = feature((change.path, [hunk(["-a = 1", "+a = 2"])]))
    titled = replace(made, title=f"{first}{space}Bcc: nobody@example.org")
    box = mail(titled, Version(RELEASE), [change], 1, 1)
    assert b"\nBcc" not in box.replace(b"\r", b"\n")
    (commit,) = read_changes(box, "x.mbox")
    assert commit.subject == f"{first} Bcc: nobody@example.org"
    assert len(commit.files) == 1
