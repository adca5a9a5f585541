"""Which package a feature is for, told without reading all of its feature.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from overlay._features.sources import further_packages, package_in
from overlay.package import VLLM

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMS = {
    "": "vllm",
    'package = "vllm_ascend"': "vllm_ascend",
    "package = 'vllm_ascend'": "vllm_ascend",
    '"package" = "vllm_ascend"  # "why"': "vllm_ascend",
    'package = "vllm_ascend"  # not = "vllm"': "vllm_ascend",
    'package = "vllm\\u005fascend"': "vllm_ascend",
    '# package = "vllm_ascend"': "vllm",
    'why = """\npackage = "vllm_ascend"\n"""': "vllm",
    "why = '''\npackage = \"vllm_ascend\"\n'''": "vllm",
    'package = "vllm_ascend"\nwhy = """\npackage = "other"\n"""': "vllm_ascend",
    'why = """\n"""\npackage = "vllm_ascend"': "vllm_ascend",
    "package = 1": "vllm",
    "\"package\" = 'vllm_ascend'": "vllm_ascend",
    "package = 'vllm_ascend'  # a \"plug-in\"": "vllm_ascend",
    '[[switches]]\npackage = "other"': "vllm",
    'package = "json"': "vllm",
    'package = "overlay"': "vllm",
    'package = "class"': "vllm",
    'package = "pakét"': "vllm",
    'package = "no-name"': "vllm",
    'package = "vllm_ascend': "vllm",
    'package = "vllm_ascend"\npackage = "other"': "vllm",
    'Xpackage = "vllm_ascend"': "vllm",
}


@pytest.mark.parametrize("text", FORMS)
def test_the_package_of_a_feature(tmp_path: Path, text: str) -> None:
    feature = tmp_path / "demo"
    feature.mkdir()
    (feature / "feature.toml").write_text(f'id = "demo"\n{text}\n', encoding="utf-8")
    assert package_in(feature).name == FORMS[text]
    further = [] if FORMS[text] == "vllm" else [FORMS[text]]
    assert [package.name for package in further_packages([tmp_path, tmp_path])] == further


def test_a_form_without_the_key_is_told_without_a_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(text: str) -> None:
        raise AssertionError(text)

    monkeypatch.setattr(tomllib, "loads", never)
    (tmp_path / "feature.toml").write_text('id = "demo"\npackaged = "vllm_ascend"\n')
    assert package_in(tmp_path) == VLLM


def test_what_cannot_be_read_is_for_vllm(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder/feature.toml").mkdir(parents=True)
    for name, text in (("bytes", b"package = '\xff'\n"), ("plain", b'package = "\xff"\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "feature.toml").write_bytes(text)
    (tmp_path / "link").mkdir()
    (tmp_path / "elsewhere.txt").write_text('package = "vllm_ascend"\n')
    (tmp_path / "link/feature.toml").symlink_to("../elsewhere.txt")
    for name in ("empty", "folder", "bytes", "plain", "link"):
        assert package_in(tmp_path / name) == VLLM
    assert further_packages([tmp_path, tmp_path / "nowhere"]) == ()
