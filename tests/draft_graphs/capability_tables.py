"""The tables of docs/appendix/attention-backends.md, from the rows of `capabilities`.

``python -m tests.draft_graphs.capability_tables`` writes them there.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from tests.draft_graphs.added_modules import added

capabilities: Any = added("capabilities")
attention: Any = added("attention")

PAGE = Path(__file__).parents[2] / "docs/appendix/attention-backends.md"
TABLES = ("platforms", "attention backends")


def platforms() -> str:
    """The table of platforms."""
    lines = ["| platform | evidence | where it lies | what it does not get |", "|---|---|---|---|"]
    for row in capabilities.PLATFORMS:
        missing = [row.why] if row.why else []
        missing += [
            f"`{bar.role}` from tensor-parallel size {bar.tensor_parallel} on: {bar.why}"
            for bar in row.bars
        ]
        if not row.undo_failed_capture:
            missing.append("a capture that failed is not undone")
        lines.append(f"| {row.name} | {row.evidence} | {row.where} | {'; '.join(missing)} |")
    return "\n".join(lines) + "\n"


def granted(row: Any, platform: Any) -> str:
    """What a backend gets on a platform."""
    shown = attention.evidence(platform, row)
    if shown == "refused":
        return "refused"
    names = [role for role in capabilities.UNIFORM_ROLES if role in row.roles]
    roles = ", ".join(f"`{role}`" for role in (*names, *["mixed"] * bool(row.mixed)))
    if shown == "gpu":
        return roles
    return f"{roles}; the log says that no GPU has shown it" if row.kept else f"{roles}, untried"


def backends() -> str:
    """The table of attention backends."""
    lines = [
        "| attention backend | releases | platform | evidence | gets | why, or where it lies |",
        "|---|---|---|---|---|---|",
    ]
    for row in capabilities.BACKENDS:
        for platform in (each for each in capabilities.PLATFORMS if each.name in row.platforms):
            told = row.why or row.where
            cells = (row.title, row.releases.replace("..", " to "), platform.name)
            shown = attention.evidence(platform, row)
            lines.append(f"| {' | '.join(cells)} | {shown} | {granted(row, platform)} | {told} |")
    unread = f"Not read, and refused: {', '.join(sorted(capabilities.UNREAD))}."
    return "\n".join([*lines, "", *textwrap.wrap(unread, 110), ""])


def page_with_tables(page: str) -> str:
    """The page with the tables as they are now."""
    for name, table in zip(TABLES, (platforms(), backends()), strict=True):
        begin = f"<!-- {name}: tests/draft_graphs/capability_tables.py writes this -->\n"
        end = f"<!-- end of {name} -->\n"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
