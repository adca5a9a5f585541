"""Fixtures of the transaction tests: fake installations to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import transactions
from tests.support.transactions import Site


@pytest.fixture(params=["installed", "checkout"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return getattr(transactions, request.param)(tmp_path / "site")


@pytest.fixture
def installed(tmp_path: Path) -> Site:
    return transactions.installed(tmp_path / "site")
