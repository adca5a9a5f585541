"""The page about the format of patches shows what the readers accept, with every key."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay._features import feature_toml, switches
from overlay._features.folder import load
from tests.support import markdown
from tests.support.markdown import ROOT

PAGE = markdown.read(ROOT / "patches/README.md")


def block(language: str) -> str:
    (found,) = (each for each in PAGE.blocks if each.language == language)
    return "".join(f"{line}\n" for line in found.lines)


def test_the_examples_are_well_formed(tmp_path: Path) -> None:
    feature = tmp_path / "draft-graphs"
    (feature / "10-dispatcher-keys").mkdir(parents=True)
    (feature / "feature.toml").write_text(block("toml"))
    shared = tmp_path / "shared/files/vllm/v1/b.py"
    shared.parent.mkdir(parents=True)
    shared.write_text("")
    # The blank line of context has no blank in front: Markdown would lose it, and git accepts it.
    (feature / "10-dispatcher-keys/0.20.0..0.33.0.patch").write_text(block("diff"))
    (read,) = load([tmp_path])
    assert (read.required, read.model_runner, len(read.switches)) == (True, "v1", 1)
    assert (len(read.upstream_tests), len(read.topics[0].upstream_tests)) == (1, 1)
    assert [module.path for module in read.added] == ["vllm/v1/b.py"]
    assert [hunk.scope for hunk in read.topics[0].variants[0].patch.hunks] == [
        "SpecDecodeBaseProposer.propose"
    ]


@pytest.mark.parametrize(
    "keys",
    [feature_toml._KEYS, feature_toml._TEST_KEYS, feature_toml._FAULT_KEYS, switches._KEYS],
    ids=["feature", "upstreamed", "fault", "switches"],
)
def test_every_key_is_shown(keys: tuple[str, ...]) -> None:
    text = block("toml")
    assert [key for key in keys if f"\n{key} =" not in f"\n{text}" and f"[{key}]" not in text] == []
