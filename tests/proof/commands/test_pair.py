"""A model and a draft that do not belong together are refused before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overlay.errors import UsageError
from overlay.proof.commands.pair import Pair, expect_pair, pair_of

TARGET = {"architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 64}
EAGLE = {"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 1000, "hidden_size": 64}
#: As the package speculators writes a draft.
SPECULATOR: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 500,
    "transformer_layer_config": {"vocab_size": 1000, "hidden_size": 64},
    "speculators_config": {
        "verifier": {"name_or_path": "org/Model-8B", "architectures": ["LlamaForCausalLM"]}
    },
}


def pair(folder: Path, target: Any, draft: Any, method: str | None = None) -> Pair:
    for name, config in (("target", target), ("draft", draft)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    return Pair(str(folder / "target"), str(folder / "draft"), method)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (TARGET, EAGLE),
        (TARGET, {**EAGLE, "draft_vocab_size": 500}),
        (TARGET, {**EAGLE, "hidden_size": 32, "target_hidden_size": 64}),
        (TARGET, SPECULATOR),
        # A draft model of its own has a width of its own.
        (TARGET, {**TARGET, "hidden_size": 32}),
        ({"text_config": TARGET, "vocab_size": 7}, EAGLE),
        (TARGET, {}),
        (TARGET, []),
        (TARGET, {"speculators_config": 1, "vocab_size": True}),
    ],
)
def test_what_belongs_together_or_says_nothing(tmp_path: Path, target: Any, draft: Any) -> None:
    assert expect_pair(pair(tmp_path, target, draft)) is None


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        ({**EAGLE, "vocab_size": 900}, "a vocabulary of 900 tokens for one of 1000"),
        ({**TARGET, "vocab_size": 900}, "a vocabulary of 900 tokens for one of 1000"),
        ({**EAGLE, "hidden_size": 32}, "hidden states of 32 values for 64"),
        (
            {**SPECULATOR, "transformer_layer_config": {"vocab_size": 9, "hidden_size": 8}},
            "and hidden states of 8 values for 64; the draft is for org/Model-8B",
        ),
        (
            {**EAGLE, "speculators_config": {"verifier": {"architectures": ["Qwen3"]}}},
            "one for Qwen3, not LlamaForCausalLM",
        ),
    ],
)
def test_what_does_not_belong_together(tmp_path: Path, draft: Any, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        expect_pair(pair(tmp_path, TARGET, draft))
    assert says in str(refusal.value)
    assert str(refusal.value).endswith(": name the draft that was made for this model")


def test_a_method_that_is_named_decides(tmp_path: Path) -> None:
    plain = {**TARGET, "hidden_size": 32}
    with pytest.raises(UsageError, match="hidden states of 32"):
        expect_pair(pair(tmp_path, TARGET, plain, "eagle"))


@pytest.mark.parametrize(
    ("name", "remark"), [("other/Model-70B", True), ("org/model-8b", False), (None, False)]
)
def test_another_targets_name_is_told(tmp_path: Path, name: str | None, remark: bool) -> None:
    target = {**TARGET, **({} if name is None else {"_name_or_path": f"{name}-Instruct"})}
    said = expect_pair(pair(tmp_path, target, SPECULATOR))
    assert (said is not None) is remark
    if said is not None:
        assert "names org/Model-8B as its target" in said


def test_the_hubs_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert expect_pair(Pair("org/target", "org/draft")) is None  # vLLM downloads them
    for name, config in (("target", TARGET), ("draft", {**EAGLE, "vocab_size": 7})):
        place = tmp_path / f"models--org--{name}"
        (place / "blobs").mkdir(parents=True)
        (place / "blobs" / "x").write_text(json.dumps(config))
        (place / "snapshots" / "1").mkdir(parents=True)
        (place / "snapshots" / "1" / "config.json").symlink_to("../../blobs/x")
    with pytest.raises(UsageError, match=r"--draft org/draft: .* a vocabulary of 7 tokens"):
        expect_pair(Pair("org/target", "org/draft"))


def test_which_pair_is_meant() -> None:
    config = '{"model": "d", "method": "eagle"}'
    assert pair_of("m", "d", None, ()) == Pair("m", "d", None)
    for words in (("-sc", config), (f"--speculative-config={config}",)):
        assert pair_of("m", None, None, words) == Pair("m", "d", "eagle")
    heterogeneous = '{"model": "d", "use_heterogeneous_vocab": true}'
    for words in (
        (),
        ("--speculative-config", "{"),
        ("--speculative-config", "[]"),
        ("--speculative-config", '{"method": "mtp"}'),
        ("--speculative-config", heterogeneous),
    ):
        assert pair_of("m", None, None, words) is None
    assert pair_of("m", "d", None, ("--hf-overrides", "{}")) is None
    assert pair_of(None, "eagle3", None, ()) is None
