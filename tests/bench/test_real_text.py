"""What is made of engines that served the same text, and what is refused; no engine starts."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import real_pair, real_text
from bench.paired_load import Party


class FakeEngine:
    """Stands for an engine's process: answers as it is told to.

    :ivar asked: the texts of which it was asked what it thinks.
    """

    def __init__(self, name: str, answers: list[list[int]] | None) -> None:
        self.party = Party(name, {}, {})
        self.told: dict[str, Any] = {}
        self.failed = "" if answers else "gone"
        self.asked: list[list[int]] = []
        self._answers = answers

    def ask(self, question: tuple[Any, ...], word: str, _seconds: float) -> Any:
        """The answer that the process would write."""
        assert word == "DONE"
        if question[0] == "opinion":
            self.asked.append(question[1])
            return [[5, -0.7], [6, -0.71]]
        if self._answers is None:
            return None
        return [self._answers, 2.0, 4, [3, 2, 0]]


def sitting(*engines: Any) -> real_text.Sitting:
    """A sitting of such engines after one round that counts."""
    result = real_text.Sitting(list(engines), argparse.Namespace(answer=8, timeout=1.0))
    for number in (0, 1):
        result.round(number, 2, [[1, 2], [3]])
    return result


def test_rates_and_acceptance_are_those_of_the_round() -> None:
    same = [[4, 5], [6, 7]]
    first, other = FakeEngine("first", same), FakeEngine("other", same)
    cell = sitting(first, other).loads["2 requests"]
    assert cell["other"]["tokens_per_s"] == [2.0]
    assert cell["other"]["ratios"] == [1.0]
    assert cell["other"]["accepted"] == [[0.75, 0.5, 0.0]] * 2
    assert cell["other"]["equal"] == ["2 of 2"] * 2
    assert cell["other"]["partings"] == first.asked == []


def test_where_answers_part_the_first_engine_is_asked() -> None:
    first = FakeEngine("first", [[4, 5, 9], [6]])
    other = FakeEngine("other", [[4, 6, 9], [6, 7]])
    cell = sitting(first, other).loads["2 requests"]["other"]
    assert cell["equal"] == ["0 of 2"] * 2
    assert cell["partings"][:2] == [
        {"token": 1, "tokens": [5, 6], "likeliest": [[5, -0.7], [6, -0.71]], "apart": 0.01},
        {"token": 1, "tokens": [None, 7], "likeliest": [[5, -0.7], [6, -0.71]], "apart": 0.01},
    ]
    assert first.asked[:2] == [[1, 2, 4], [3, 6]]
    assert other.asked == []


def test_an_engine_that_is_gone_leaves_a_gap() -> None:
    cell = sitting(FakeEngine("first", [[4], [5]]), FakeEngine("gone", None)).loads["2 requests"]
    assert cell["gone"] == {"tokens_per_s": [None]}


def test_a_party_has_the_draft_unless_it_wants_none(tmp_path: Path) -> None:
    args = real_text.command_line().parse_args(
        ["--model", "M", "--draft", "D", "--engine", '{"dtype": "float32"}']
    )

    def options(party: str) -> dict[str, Any]:
        command = real_text.command_of(real_text.party(party), args)
        return dict(json.loads(command[-1])["options"])

    draft = options("a;X=1")["speculative_config"]
    assert draft == {"method": "eagle3", "model": "D", "num_speculative_tokens": 3}
    assert "speculative_config" not in options('b;X=1;{"k": 0}')
    assert options('b;X=1;{"dtype": "bfloat16"}')["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("prompts", "said"),
    [(None, "expected prompts"), ("[]", "found none"), ("{", "expected prompts")],
)
def test_prompts_that_are_none_are_refused(
    prompts: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    given = tmp_path / "prompts.json"
    if prompts is not None:
        given.write_text(prompts)
    out = tmp_path / "out.json"
    places = ["--model", tmp_path, "--draft", tmp_path, "--prompts", given, "--out", out]
    assert real_text.main([*map(str, places), "--party", "a;X=1"]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_missing_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "x.gguf"
    source.write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert real_pair.main(["convert", str(source), str(tmp_path / "model")]) == 2
    assert "expected the package safetensors" in capsys.readouterr().err
