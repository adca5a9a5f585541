"""Which journals are believed: none that names what lies behind a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.errors import TransactionError
from overlay.on_disk.journal import Journal, Step
from overlay.on_disk.recovery import require_plain
from overlay.package import VLLM

STEPS = (Step("vllm/v1/worker/a.py", "0" * 64, "1" * 64), Step("RECORD", "0" * 64, "1" * 64))


@pytest.mark.parametrize("linked", ["vllm", "vllm/v1", "vllm/v1/worker"])
@pytest.mark.parametrize("named", ["steps", "made", "dropped"])
def test_a_link_at_any_depth_is_refused(tmp_path: Path, linked: str, named: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (elsewhere / "v1" / "worker").mkdir(parents=True)
    (elsewhere / "worker").mkdir()
    place = root / linked
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere, target_is_directory=True)
    begun = Journal("apply", "0.1.0", STEPS if named == "steps" else STEPS[1:])
    if named != "steps":
        begun = begun._replace(**{named: ("vllm/v1/worker/new",)})
    with pytest.raises(TransactionError, match=f"{place}.*link"):
        require_plain(root, begun, VLLM)


def test_plain_folders_and_those_that_are_not_there_are_fine(tmp_path: Path) -> None:
    require_plain(tmp_path, Journal("apply", "0.1.0", STEPS, ("vllm/v1/new",)), VLLM)
    (tmp_path / "vllm" / "v1" / "worker").mkdir(parents=True)
    require_plain(tmp_path, Journal("apply", "0.1.0", STEPS, ("vllm/v1/new",)), VLLM)


def test_a_link_that_no_step_passes_through_is_nobody_s_business(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "other").symlink_to(tmp_path)
    require_plain(tmp_path, Journal("apply", "0.1.0", STEPS), VLLM)
