"""Fixtures of the target tests: a package index that may misbehave, and a private cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlay.targets import fetch as fetching
from overlay.targets import http
from overlay.targets.pip_config import IndexConfig
from tests.support.fake_index import FakeIndex, serve


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own; retries do not wait."""
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.001)
    return tmp_path / "cache"


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch):
    """Replace what pip is configured to."""

    def set_config(*indexes: str, **settings: Any) -> None:
        config = IndexConfig(tuple(indexes), **{"timeout": 5.0, **settings})
        monkeypatch.setattr(fetching, "configured", lambda: config)

    return set_config


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch):
    """From now on, whoever asks for the network fails the test."""

    def cut() -> None:
        def fail() -> None:
            raise AssertionError("the network was asked for")

        monkeypatch.setattr(fetching, "configured", fail)

    return cut


@pytest.fixture
def index(configure) -> Iterator[FakeIndex]:
    """A running index, configured as the only one."""
    with serve() as running:
        configure(running.simple)
        yield running
