"""Which package a feature is for, told without reading all of its feature.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.on_disk.patch_folders import further_packages, package_in

FORMS = {
    "": "vllm",
    'package = "vllm_ascend"': "vllm_ascend",
    "package = 'vllm_ascend'": "vllm_ascend",
    '"package" = "vllm_ascend"  # "why"': "vllm_ascend",
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
}


@pytest.mark.parametrize("text", FORMS)
def test_the_package_of_a_feature(tmp_path: Path, text: str) -> None:
    feature = tmp_path / "demo"
    feature.mkdir()
    (feature / "feature.toml").write_text(f'id = "demo"\n{text}\n', encoding="utf-8")
    assert package_in(feature) == FORMS[text]
    further = () if FORMS[text] == "vllm" else (FORMS[text],)
    assert further_packages([tmp_path, tmp_path]) == further


def test_what_cannot_be_read_is_for_vllm(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes/feature.toml").write_bytes(b"package = '\xff'\n")
    assert further_packages([tmp_path, tmp_path / "nowhere"]) == ()
