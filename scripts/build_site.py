#!/usr/bin/env python3
"""Build the site of the pages, below ``.cache/site/html``; a dead link or anchor fails.

Pages link to each other and to files of the checkout (results, tests, sources).  mkdocs serves one
folder, so the pages are laid out in one as they are in the checkout, beside the files that they
link to; a link to a folder becomes its text.  Pages that the menu in ``mkdocs.yml`` does
not name are put behind it, so that nobody keeps a list of appendices.

Needs mkdocs-material, which ``scripts/environment.py dev`` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "mkdocs.yml"
TOPS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
#: Text and target of a link, which may be broken over two lines.
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"(- |\d+\. )")


class DeadLink(Exception):
    """A page links to what is not there, or is not in the checkout."""


def pages() -> list[Path]:
    """The pages of the site."""
    tops = [ROOT / name for name in TOPS if (ROOT / name).exists()]
    return [*tops, ROOT / "patches/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stage(folder: Path) -> None:
    """Lay out the pages and what they link to.

    :raises DeadLink: naming page and target.
    """
    waiting, staged = pages(), set[Path]()
    while waiting:
        page = waiting.pop()
        if page in staged:
            continue
        staged.add(page)
        text, linked = _with_links(page)
        place = folder / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        waiting += [file for file in linked if file.suffix == ".md"]
        for file in (file for file in linked if file.suffix != ".md"):
            copy = folder / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    shutil.copyfile(ROOT / "docs/site.css", folder / "docs/site.css")


def _with_links(page: Path) -> tuple[str, list[Path]]:
    """The text of a page as the site has it, and the files of the checkout that it links to."""
    linked: list[Path] = []

    def replaced(match: re.Match[str]) -> str:
        words, target = match.groups()
        path = target.partition("#")[0]
        if not path or re.match(r"[a-z]+:", target):
            return match[0]
        file = Path(os.path.normpath(page.parent / path))
        if not file.exists() or not file.is_relative_to(ROOT):
            raise DeadLink(f"{page.relative_to(ROOT)}: expected a file, found none: {target}")
        if file.is_dir():
            return words
        linked.append(file)
        return match[0]

    text = page.read_text(encoding="utf-8")
    blocks = _FENCED.split(text)
    blocks[::2] = [_LINK.sub(replaced, block) for block in blocks[::2]]
    return _with_lists("".join(blocks)), linked


def _with_lists(text: str) -> str:
    """Lists as Python-Markdown wants them: a blank line before, four spaces for two or three."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if _ITEM.match(line):
            if lines and lines[-1] and not inside:
                lines.append("")
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        rest = line.lstrip(" ")
        lines.append(" " * 4 + rest if inside and 0 < len(line) - len(rest) < 4 else line)
    return "\n".join(lines)


def main() -> int:
    """Stage and build; the exit status of mkdocs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / ".cache/site", help="default: %(default)s"
    )
    place = parser.parse_args().out
    shutil.rmtree(place, ignore_errors=True)
    try:
        stage(place / "pages")
    except DeadLink as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    settings = place / "mkdocs.yml"
    text = SETTINGS.read_text(encoding="utf-8").replace(".cache/site/", "")
    settings.write_text(text + _rest(place / "pages"), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(settings)]
    # The theme's advertisement of another builder would be a warning.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=environment, check=False).returncode


def _rest(folder: Path) -> str:
    """The last groups of the menu: pages that it does not name."""
    menu = SETTINGS.read_text(encoding="utf-8")
    groups: dict[str, list[str]] = {"Project": [], "Appendix": []}
    for name in (page.relative_to(ROOT).as_posix() for page in pages()):
        if f": {name}\n" in menu:
            continue
        title = re.search(r"^# (.*)$", (folder / name).read_text(encoding="utf-8"), re.MULTILINE)
        group = "Appendix" if name.startswith("docs/appendix/") else "Project"
        groups[group].append(f"      - {json.dumps(title[1] if title else name)}: {name}\n")
    # The menu ends with the group of the project.
    appendix = groups["Appendix"]
    return "".join([*groups["Project"], *(["  - Appendix:\n", *appendix] if appendix else [])])


if __name__ == "__main__":
    raise SystemExit(main())
