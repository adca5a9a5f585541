"""The examples of the page about the Python API run as they are."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import overlay
from tests.support import fake_vllm, markdown
from tests.support.cli import PROPOSE
from tests.support.markdown import ROOT
from tests.support.patches import write_feature

PAGE = ROOT / "docs/python-api.md"


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    team = tmp_path / "team"
    write_feature(team, {"10-propose/0.20.0..0.33.0.patch": PROPOSE})
    site = fake_vllm.site_packages(tmp_path / "site-packages")
    source = "\n".join(line for block in markdown.read(PAGE).blocks for line in (*block.lines, ""))
    examples = doctest.DocTestParser().get_doctest(
        source, {"site": site, "team": team}, PAGE.name, str(PAGE), 0
    )
    assert len(examples.examples) > 6
    told: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(examples, out=told.append)
    assert results.failed == 0, "".join(told)


def test_every_name_of_the_promise_is_described() -> None:
    page = markdown.read(PAGE)
    described = " ".join(code for _, code in page.inline_code)
    missing = [name for name in overlay.__all__ if not re.search(rf"\b{name}\b", described)]
    assert not missing
