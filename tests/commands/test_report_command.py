"""``overlay report``: one page of what several commands answer."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import Cli, digest, drift

VOID = {"meta", "br"}


class Page(HTMLParser):
    """A page of HTML: whether every element is closed in order, what it loads, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def expect_safe(page: Page) -> None:
    """Nothing is loaded or run, and links stay on the page."""
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "style", "srcdoc"), (tag, name)
        if name == "href":
            assert value.startswith("#")
            assert value[1:] in page.ids


def test_the_page_has_a_section_for_each_command(cli: Cli, site: Path, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    before = digest(site)
    told = cli("report", site, "--no-matrix", "-o", place)
    assert digest(site) == before
    content = place.read_text()
    page = Page(content)
    expect_safe(page)
    for command in (f"check {site}", f"status {site}", "status --live", "doctor"):
        assert f"overlay {command}" in page.text
    assert "demo" in page.text
    assert 'name="viewport"' in content
    assert "prefers-color-scheme: dark" in content
    assert f"written: {place}" in told.out
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_text_json_and_page_agree(cli: Cli, site: Path) -> None:
    drift(site)
    text = cli("report", site, "--no-matrix")
    data = cli("report", site, "--no-matrix", "--json")
    page = cli("report", site, "--no-matrix", "-o", "-")
    assert text.exit == data.exit == page.exit == 1
    verdict = data.json["verdict"]
    assert text.out.rstrip().endswith(verdict)
    assert verdict in Page(page.out).text
    sections = data.json["report"]["sections"]
    check = cli("check", site, "--json").json
    assert sections[0]["report"] == check
    assert "Action needed" in verdict
    assert f"overlay check {site}" in verdict
    for section in sections:
        assert section["report"]["verdict"] in text.out
        assert section["report"]["verdict"] in Page(page.out).text


def test_a_section_that_cannot_be_answered_is_named_and_the_others_are_there(
    cli: Cli, tmp_path: Path
) -> None:
    told = cli("report", tmp_path / "nothing", "--no-matrix", "--json")
    assert told.exit == 1
    sections = told.json["report"]["sections"]
    assert [section["report"]["exit"] for section in sections[:2]] == [2, 2]
    assert sections[3]["report"]["command"] == "doctor"


@pytest.mark.parametrize("inside", ["report.html", "vllm/report.html", "link/report.html"])
def test_nothing_is_written_into_a_target(
    cli: Cli, site: Path, tmp_path: Path, inside: str
) -> None:
    (tmp_path / "link").symlink_to(site / "vllm")
    place = tmp_path / inside if inside.startswith("link") else site / inside
    before = digest(site)
    told = cli("report", site, "--no-matrix", "-o", place)
    assert told.exit == 2
    assert "outside of the target" in told.err
    assert digest(site) == before


def test_a_page_that_cannot_be_written_is_an_error(cli: Cli, site: Path, tmp_path: Path) -> None:
    told = cli("report", site, "--no-matrix", "-o", tmp_path / "no" / "folder.html")
    assert told.exit == 2
    assert "No such file or directory" in told.err


def test_a_link_into_a_target_is_a_place_in_the_target(
    cli: Cli, site: Path, tmp_path: Path
) -> None:
    place, before = tmp_path / "page.html", digest(site)
    place.symlink_to(site / "vllm/__init__.py")
    told = cli("report", site, "--no-matrix", "-o", place)
    assert (told.exit, "outside of the target" in told.err) == (2, True)
    assert digest(site) == before


def test_without_an_index_the_matrix_is_told_and_the_rest_is_there(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    told = cli("report", site, "--releases", "0.26.0..0.26.0", "--json")
    assert told.exit == 1
    sections = told.json["report"]["sections"]
    assert sections[-1]["title"] == "overlay log --matrix --releases 0.26.0..0.26.0"
    assert sections[-1]["report"]["exit"] == 2
    assert sections[0]["report"]["exit"] == 0


def test_an_option_is_not_broken_behind_its_hyphens(cli: Cli, site: Path) -> None:
    drift(site)
    told = cli("report", site, "--no-matrix", "-o", "-", "--patches", cli.team)
    assert '<span class="option">--patches</span> ' in told.out
    assert " --patches" not in told.out
    assert ".option { white-space: nowrap; }" in told.out


def test_an_environment_is_asked_by_doctor_too(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs overlay from elsewhere has no vLLM in overlay's own Python: no problem of theirs."""
    place = tmp_path / "venv"
    site = fake_vllm.site_packages(place / "lib" / "python3.11" / "site-packages", version="0.33.0")
    (place / "pyvenv.cfg").write_text("version = 3.11.4\n")
    monkeypatch.setattr("overlay._processes.live.processes", lambda: ())  # this machine's
    for target, name in ((place, f"overlay doctor {place}"), (site, "overlay doctor")):
        told = cli("report", target, "--no-matrix", "--json").json["report"]["sections"]
        assert told[3]["title"] == name
    assert told[3]["report"]["exit"] == 0
    (note,) = told[3]["report"]["doctor"]["notes"]
    assert note.startswith("no vLLM: ")
    assert cli("report", "--no-matrix").exit == 1
    monkeypatch.chdir(tmp_path)
    (section,) = cli("report", "venv", "--no-matrix", "--json").json["report"]["sections"][3:]
    assert section["report"]["doctor"]["vllm"]["version"] == "0.33.0"


@pytest.mark.parametrize("words", [("--no-matrix", "--releases", "all"), ("-o", "-", "--json")])
def test_options_that_contradict_each_other(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("report", *words).exit == 2


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>\x1b[31m"


def test_strangers_text_is_text(cli: Cli, tmp_path: Path) -> None:
    told = cli("report", tmp_path / re.sub("/", "_", HOSTILE), "--no-matrix", "-o", "-")
    page = Page(told.out)
    expect_safe(page)
    assert "<script>" in page.text
    assert "\x1b" not in told.out
    assert json.loads(cli("report", HOSTILE, "--no-matrix", "--json").out)["command"] == "report"
