"""Pull requests of upstream: each release is answered at least as well as was measured on them."""

from __future__ import annotations

import pytest

from bench.pulls import PULLS, Pull, release_texts
from overlay.package import KNOWN_RELEASES

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
    assert len({pull.number for pull in PULLS}) == len(PULLS) == 12
    for pull in PULLS:
        assert len(pull.expected) == len(KNOWN_RELEASES)
        assert KNOWN_RELEASES.index(pull.newer) == KNOWN_RELEASES.index(pull.older) + 1
        assert pull.expected.index("U") == KNOWN_RELEASES.index(pull.newer)
