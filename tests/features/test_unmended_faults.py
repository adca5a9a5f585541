"""Faults of `scripts/unmended_faults.toml`, on each release's own functions: who has them.

A release that has one no longer fails here, and so does one that begins to.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from packaging.version import Version

from overlay._features.documents import parse_toml
from overlay.package import KNOWN_RELEASES, VLLM, ReleaseRange
from overlay.targets.resolution import resolve

pytestmark = pytest.mark.network

UNMENDED = Path(__file__).resolve().parents[2] / "scripts/unmended_faults.toml"
MANAGER = "vllm/v1/structured_output/__init__.py"
DRAFTER = "vllm/v1/spec_decode/llm_base_proposer.py"
END = 7


def releases_with(words: str) -> list[str]:
    """The releases that are said to have the fault whose symptom has these words."""
    faults = parse_toml(UNMENDED.read_text(encoding="utf-8"))["faults"]
    (fault,) = (each for each in faults if words in each["symptom"])
    span = ReleaseRange.parse(fault["releases"], VLLM)
    return [release for release in KNOWN_RELEASES if Version(release) in span]


class Bounds(NamedTuple):
    """`ConstraintBounds` of 0.33.0."""

    grammar_start: int
    constraint_start: int


class Reasoner:
    """Reasoning ends with the token `END`."""

    def is_reasoning_end(self, tokens: Sequence[int]) -> bool:
        return END in tokens

    def is_reasoning_end_streaming(self, _: Sequence[int], delta: Sequence[int]) -> bool:
        return END in list(delta)


def manager_of(release: str) -> Any:
    """A release's StructuredOutputManager, as far as it tells a grammar what was said."""
    text = resolve(release).read(MANAGER)
    assert text is not None
    (kind,) = (
        each
        for each in ast.parse(text).body
        if isinstance(each, ast.ClassDef) and each.name == "StructuredOutputManager"
    )
    others = {"__init__", "_get_reasoner", "grammar_init", "grammar_bitmask", "_fill_bitmasks"}
    kind.body = [
        each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name not in others
    ]
    future = ast.parse("from __future__ import annotations").body
    names: dict[str, Any] = {
        "TYPE_CHECKING": False,
        "itertools": itertools,
        "StructuredOutputGrammar": object,
        "StructuredOutputOptions": SimpleNamespace(STRUCTURAL_TAG="structural tag"),
        "ParserEngineReasoningAdapter": Bounds,
        "ConstraintBounds": Bounds,
        "_CONSTRAINED_FROM_START": Bounds(0, 0),
        "_NO_SPEC_TOKENS": Bounds(1, 1),
    }
    exec(compile(ast.Module([*future, kind], []), release, "exec"), names)
    manager = names["StructuredOutputManager"]()
    manager.reasoner, manager._get_reasoner = Reasoner(), lambda _: Reasoner()
    manager.enable_in_reasoning = False
    manager.vllm_config = SimpleNamespace(speculative_config=SimpleNamespace())
    return manager


def heard_by_grammar(release: str, tokens: list[int]) -> list[int]:
    """What the grammar of a request is told of a step that gave these tokens, by its scheduler."""
    heard: list[int] = []
    grammar = SimpleNamespace(accept_tokens=lambda _, given: not heard.extend(given))
    asked = SimpleNamespace(
        grammar=grammar,
        reasoning_ended=False,
        reasoning_end_token_index=None,
        structured_output_key=("json", "{}"),
    )
    prompt = [1, 2, 3]
    request = SimpleNamespace(
        request_id="r",
        use_structured_output=True,
        structured_output_request=asked,
        prompt_token_ids=prompt,
        all_token_ids=prompt + tokens,
        num_computed_tokens=len(prompt),
        num_output_placeholders=0,
    )
    manager = manager_of(release)
    if hasattr(manager, "accept_tokens"):  # from 0.30 on
        manager.accept_tokens(request, tokens)
    elif manager.should_advance(request):
        trim = getattr(manager, "trim_reasoning_for_advance", lambda _, given: given)
        grammar.accept_tokens("r", trim(request, tokens))
    assert asked.reasoning_ended
    return heard


def test_a_grammar_is_not_told_what_follows_the_end_of_the_reasoning_in_a_step() -> None:
    deaf = [
        release
        for release in KNOWN_RELEASES
        if heard_by_grammar(release, [4, 5, END, 8, 9]) != [8, 9]
    ]
    assert deaf == releases_with("end of the reasoning")


def test_nothing_of_v2_asks_whether_the_draft_is_to_run_eagerly() -> None:
    ignoring = []
    for release in KNOWN_RELEASES:
        target = resolve(release)
        v2 = [path for path in target.paths() if path.startswith("vllm/v1/worker/gpu/")]
        texts = [target.read(path) or b"" for path in v2 if path.endswith(".py")]
        assert len(texts) > 50
        assert b"speculative_config.enforce_eager" in (target.read(DRAFTER) or b"")
        if not any(re.search(rb"(speculative|draft)\w*\.enforce_eager", text) for text in texts):
            ignoring.append(release)
    assert ignoring == releases_with("enforce_eager of the draft")
