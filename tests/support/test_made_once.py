"""What is made once for all processes is made once, and again only where it failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.made_once import made_once


class Factory:
    """The folder of one process of a run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def getbasetemp(self) -> Path:
        return self.folder


def test_processes_of_one_run_share_what_one_of_them_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    factories: list[Any] = [Factory(tmp_path / name) for name in ("gw0", "gw1")]
    calls: list[Path] = []
    first, second = (made_once(each, "models", calls.append) for each in factories)
    assert calls == [first] == [second] == [tmp_path / "models"]


def test_what_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    factory: Any = Factory(tmp_path / "run")

    def fail(folder: Path) -> None:
        (folder / "part").touch()
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        made_once(factory, "models", fail)
    folder = made_once(factory, "models", lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert folder.parent == tmp_path / "run"
