#!/usr/bin/env python3
"""Write docs/faults.md from the features that mend something, and from ``unmended_faults.toml``.

render_faults.py            write the page
render_faults.py --check    exit with 1 if it is not what the data say
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from overlay._features.folder import load
from overlay._features.model import Feature
from overlay._features.sources import shipped_folder
from overlay.untrusted import parse_toml

PAGE = ROOT / "docs/faults.md"
UNMENDED = Path(__file__).with_name("unmended_faults.toml")
WIDTH = 110
HEAD = """\
# Known faults

What stock releases do wrong, by what you see: search this page for the words of your error.
`overlay check` names those that a release has; `overlay show ID` tells all of one.
In a step that does not need it, a mend takes at most 6.2 microseconds of the host in the median,
0.12 % of 64 decodes of 1B on an H200, and all together 0.21 %
([result](../bench/results/cpu-mend-costs-0.32.0-2026-11-27.json)); `draft-weights`, `eager-draft`
and `dbo` are in no such step.
This page is written by `scripts/render_faults.py`.
"""


def numbers(addresses: Sequence[str]) -> str:
    """Links to upstream's reports, by repository and number."""
    links = []
    for address in addresses:
        *_, name, _, number = address.split("/")
        links.append(f"[{name}#{number}]({address})")
    return ", ".join(links) or "none"


def wrapped(text: str) -> Iterator[str]:
    """Lines of a paragraph; a link is one word."""
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    yield line


def mended(feature: Feature) -> Iterator[str]:
    """The lines of a fault that a feature mends."""
    fault = feature.fault
    assert fault is not None
    yield from ("", f"### {feature.id}", "")
    yield from wrapped(fault.symptom)
    yield ""
    page = fault.page.removeprefix("docs/")
    until = f"; merged in {feature.merged}" if feature.merged else ""
    package = "" if feature.package.name == "vllm" else f"{feature.package.title} "
    for item in (
        f"- **releases**: {package}{feature.releases}{until}",
        f"- **affects**: {fault.affects}",
        *([f"- **reports**: {numbers(fault.reports)}"] if fault.reports else []),
        f"- **switch**: {', '.join(f'`{each.name}`' for each in feature.switches)}",
        f"- **shown**: [{page}]({page})",
    ):
        yield from indented(item)


def indented(item: str) -> Iterator[str]:
    """The lines of an item of a list."""
    for number, line in enumerate(wrapped(item)):
        yield f"  {line}" if number else line


def unmended(fault: dict[str, Any]) -> Iterator[str]:
    """The lines of a fault that nothing mends."""
    yield ""
    yield from wrapped(fault["symptom"])
    yield ""
    how = "" if "shown" in fault else ", by reading"
    items = [f"- **releases**: {fault['releases']}{how}", f"- **affects**: {fault['affects']}"]
    if fault["reports"]:
        items.append(f"- **reports**: {numbers(fault['reports'])}")
    if "shown" in fault:
        items.append(f"- **shown**: {fault['shown']}")
    for item in (*items, f"- **why it is not mended**: {fault['why']}"):
        yield from indented(item)


def render() -> str:
    """The page."""
    lines = [HEAD.rstrip("\n"), "", "## Mended"]
    for feature in load([shipped_folder()]):
        if feature.fault is not None:
            lines += mended(feature)
    lines += ["", "## Not mended"]
    for fault in parse_toml(UNMENDED.read_text(encoding="utf-8"))["faults"]:
        lines += unmended(fault)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or compare the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    page = render()
    if not check:
        PAGE.write_text(page, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page:
        print(f"{PAGE} is not what the features say: run scripts/render_faults.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
