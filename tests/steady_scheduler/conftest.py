"""The switch of the feature, as where nobody has set it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVERLAY_STEADY_SCHEDULER", raising=False)
