"""What is said of a change that came in."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.authoring.commands.new import new_from_edits
from overlay.authoring.importing import words_of
from overlay.authoring.incoming import Commit
from overlay.commands.request import Request
from overlay.errors import TargetError
from overlay.package import VLLM


def test_the_reason_names_the_commits_that_were_laid_on_the_first() -> None:
    first = Commit((), "Log the tenant", "Log the tenant\n\nSupport asks.")
    words = words_of([first, Commit((), "Warn of it")], "tenants", "a.mbox", "", "", VLLM)
    assert words.title == "Log the tenant"
    assert words.why.endswith("\n\nWith: Warn of it.")
    assert "With" not in words_of([first], "tenants", "a.mbox", "", "", VLLM).why


@pytest.mark.parametrize(("releases", "says"), [(None, True), ("vllm==0.26.0", False)])
def test_where_no_vllm_is_another_package_can_be_named(
    releases: str | None, says: bool, tmp_path: Path
) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    with pytest.raises(TargetError) as caught:
        new_from_edits(Request(target=str(tmp_path)), "a", tmp_path / "ours", releases=releases)
    assert ("--releases NAME==VERSION" in str(caught.value)) is says
