"""The site builds from the pages as they are, and a dead link or anchor fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import build_site
from tests.support import markdown
from tests.support.markdown import ROOT


def test_the_site_has_every_page_and_the_menu_names_none_twice() -> None:
    staged = {page.relative_to(ROOT).as_posix() for page in build_site.pages()}
    assert {page.name for page in markdown.pages()} <= staged
    menu = build_site.SETTINGS.read_text(encoding="utf-8")
    assert [name for name in staged if menu.count(f": {name}\n") > 1] == []


@pytest.mark.parametrize("target", ["../docs/none.md", "../../outside.md"])
def test_a_link_to_what_is_not_there_is_dead(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    page.write_text(f"# Page\n\n[a link]({target})\n\n```\n[not a link](none.md)\n```\n")
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    monkeypatch.setattr(build_site, "pages", lambda: [page])
    with pytest.raises(build_site.DeadLink, match=target):
        build_site.stage(tmp_path / "out")


def test_a_link_to_a_folder_is_its_text_and_a_file_is_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/result.json").write_text("{}")
    (page.parent / "site.css").write_text("")
    page.write_text("# Page\n\n[`deploy`](../deploy), [it](../deploy/result.json).\n- a\n  b\n")
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    monkeypatch.setattr(build_site, "pages", lambda: [page])
    build_site.stage(tmp_path / "out")
    text = (tmp_path / "out/docs/page.md").read_text()
    assert text == "# Page\n\n`deploy`, [it](../deploy/result.json).\n\n- a\n    b\n"
    assert (tmp_path / "out/deploy/result.json").read_text() == "{}"


@pytest.mark.slow
def test_the_site_builds_without_a_dead_link_or_anchor(tmp_path: Path) -> None:
    script = ROOT / "scripts/build_site.py"
    command = [sys.executable, str(script), "--out", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/html/search/search_index.json").stat().st_size > 100_000
    assert (tmp_path / "site/html/docs/states.html").is_file()
