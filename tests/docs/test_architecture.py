"""The page about the architecture names the rooms that there are."""

from __future__ import annotations

import re

from scripts import import_graph
from tests.support import markdown
from tests.support.markdown import ROOT


def test_every_room_is_described() -> None:
    page = markdown.read(ROOT / "docs/architecture.md")
    described = {match[1] for _, text in page.tables if (match := re.match(r"\| `(\w+)` \|", text))}
    assert set(import_graph.read().rooms) <= described
