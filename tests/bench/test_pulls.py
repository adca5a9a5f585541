"""Pull requests of upstream: each release is answered at least as well as was measured on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pulls import PULLS, Pull, own_part, release_texts
from overlay.authoring.git import Checkout
from overlay.package import KNOWN_RELEASES
from tests.support.git_repository import Repository, needs_git

#: What may be found where a letter was measured: better is fine, upstream's is never mistaken.
ALLOWED = {"U": "U", "P": "P", "3": "P3", "c": "P3cM", "M": "P3cM"}


@pytest.mark.network
@pytest.mark.parametrize("pull", PULLS, ids=lambda pull: str(pull.number))
def test_every_release_is_answered_at_least_as_well_as_it_was_measured(pull: Pull) -> None:
    found = pull.letters(release_texts())
    assert len(found) == len(KNOWN_RELEASES)
    wrong = [
        f"{release}: expected {wanted}, found {letter}"
        for release, wanted, letter in zip(KNOWN_RELEASES, pull.expected, found, strict=True)
        if letter not in ALLOWED[wanted]
    ]
    assert not wrong, f"{pull.expected} expected, {found} found"


def test_the_table_is_complete() -> None:
    assert len({pull.number for pull in PULLS}) == len(PULLS) == 13
    for pull in PULLS:
        assert len(pull.expected) == len(KNOWN_RELEASES)
        older, newer = KNOWN_RELEASES.index(pull.older), KNOWN_RELEASES.index(pull.newer)
        if newer < older:  # a revert: what came before has its text
            assert pull.expected.rindex("U") == newer == older - 1
        else:
            assert pull.expected.index("U") == newer == older + 1


@pytest.mark.network
@needs_git
def test_a_checkout_gives_upstreams_own_commit(tmp_path: Path) -> None:
    (pull,) = (pull for pull in PULLS if pull.number == 47692)
    texts = release_texts()
    ((path, wanted),) = pull.files.items()
    before, after = texts.read(pull.older, path), texts.read(pull.newer, path)
    assert before is not None
    assert after is not None
    history = Repository.create(tmp_path / "vllm")
    history.commit("Before", {path: before})
    assert pull.mail(Checkout(history.folder)) is None
    own = {path: own_part(before, after, wanted), "tests/test_a.py": b"a = 1\n"}
    history.commit("[Core] Data-parallel start rank (#47692)", own)
    mail = pull.mail(Checkout(history.folder))
    assert mail is not None
    assert b"Data-parallel start rank (#47692)" in mail
    assert pull.letters(texts, history.folder) == pull.expected
