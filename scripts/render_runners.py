#!/usr/bin/env python3
"""Write which model runner vLLM chooses, from the tables from which the commands speak.

render_runners.py            write the table of docs/model-runners.md, and the appendix of settings
render_runners.py --check    exit with 1 if they are not what ``overlay/_features`` says
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from overlay._features.vllm_defaults import MODELS, ONLY_V2, SETTINGS, Setting
from scripts.render_performance import between, table

PAGE = ROOT / "docs/model-runners.md"
APPENDIX = ROOT / "docs/appendix/runner-settings.md"
TOP = """\
<!-- Written by scripts/render_runners.py; a test compares. -->

# Settings that decide the model runner

[Which models run on which](../model-runners.md) is decided by vLLM's own code; these are read in
`vllm/config/vllm.py` of each release.

## Settings that send a model to V1

The model would run on V2 by default.

"""
ONLY_V2_TOP = """
## What V1 does not serve

With `VLLM_USE_V2_MODEL_RUNNER=0` vLLM stops with an error where one of these is asked for, but for
watermarks, for which it chooses V2 all the same.

"""


def span(releases: tuple[str, str]) -> str:
    """Minor releases as pages write them: ``0.22 to 0.24``, ``0.20, 0.21`` or ``0.24``."""
    first, last = (int(text.partition(".")[2]) for text in releases)
    if last - first > 1:
        return f"{releases[0]} to {releases[1]}"
    return ", ".join(dict.fromkeys(releases))


def settings(rows: Iterable[Setting]) -> str:
    """The table of settings."""
    lines = table(["setting", "releases"], [[each.text, span(each.releases)] for each in rows])
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """The page and the appendix, by path."""
    models = table(
        ["vLLM", "V2 by default", "V1 by default"],
        [[span(rule.releases), rule.v2, rule.v1] for rule in MODELS],
    )
    page = between(PAGE.read_text(encoding="utf-8"), "models", "\n".join(models))
    appendix = f"{TOP}{settings(SETTINGS)}\n{ONLY_V2_TOP}{settings(ONLY_V2)}\n"
    return {PAGE: page, APPENDIX: appendix}


def main() -> int:
    """Write or compare the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    for path, text in pages().items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is not what the tables say: run scripts/render_runners.py")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
