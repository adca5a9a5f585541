"""What docs/many-gpus.md says stays without draft graphs is what the code refuses, and why."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from overlay.package import KNOWN_RELEASES
from overlay.targets.resolution import resolve
from tests.draft_graphs.added_modules import added
from tests.draft_graphs.policy_table import PLAIN
from tests.support.markdown import ROOT

policy: Any = added("policy")
couplings: Any = added("coupling")

PAGE = (ROOT / "docs/many-gpus.md").read_text(encoding="utf-8")
APPENDIX = (ROOT / "docs/appendix/many-gpus.md").read_text(encoding="utf-8")
RUNNER = "vllm/v1/worker/gpu_model_runner.py"


def rows() -> dict[str, tuple[str, str]]:
    """The table of what runs in graphs: the configuration, whether it does, and what to do."""
    table = PAGE.partition("## What runs in graphs")[2].partition("\n\n- **")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in table.splitlines()
        if line.startswith("| ")
    ]
    return {cell[0].lstrip("| "): (cell[1], cell[2].rstrip(" |")) for cell in cells[1:]}


def elastic() -> Any:
    """How ranks of elastic expert parallelism draft."""
    parallel = SimpleNamespace(data_parallel_size=2, enable_elastic_ep=True)
    drafter = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))
    return replace(PLAIN, coupling=couplings.coupling(drafter))


#: The configuration as the page words it -> what the policy is asked, and the setting that both
#: name.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "decode context parallelism": (
        lambda: replace(PLAIN, decode_context_parallel_size=2),
        "decode_context_parallel_size",
    ),
    "prefill context parallelism": (
        lambda: replace(PLAIN, prefill_context_parallel_size=2),
        "prefill_context_parallel_size",
    ),
    "sequence parallelism of dense layers": (
        lambda: replace(PLAIN, sequence_parallel=True),
        "enable_sp",
    ),
    "elastic expert parallelism": (elastic, "enable_elastic_ep"),
}


def test_the_page_refuses_these_and_no_others() -> None:
    said = {name.partition(" (")[0] for name, (answer, _) in rows().items() if answer == "no"}
    assert said == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_the_policy_refuses_it_and_both_name_the_setting(name: str) -> None:
    facts, setting = REFUSED[name]
    assert policy.decide("auto", PLAIN).any
    decision = policy.decide("auto", facts())
    assert not decision.any
    (reason,) = decision.refusals
    assert setting in reason
    (remedy,) = [needs for row, (_, needs) in rows().items() if row.startswith(name)]
    assert f"`{setting}`" in remedy
    # The page says why, too.
    whys = PAGE.partition("Why those are refused:")[2].partition("\n## ")[0].lower()
    assert name in whys or f"`{setting}`" in whys


def test_pages_that_say_nothing_of_them_promise_nothing() -> None:
    """README, and whatever page has another subject."""
    told = re.compile(
        r"pipeline.parallel|context.parallel|enable_sp\b|elastic.(expert|ep\b)", re.IGNORECASE
    )
    known = {"draft-graphs.md", "many-gpus.md", "model-runners.md", "ascend.md"}
    # They list what they leave alone.
    known |= {"steady-scheduler.md", "decode-graph-sizes.md", "draft-gate.md"}
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert {page.name for page in pages if told.search(page.read_text(encoding="utf-8"))} <= known


# Pipeline parallelism: the page's one reason, in the sources.


def drafter_uses(
    tree: ast.AST, conditions: tuple[ast.expr, ...] = ()
) -> Iterator[tuple[ast.Attribute, bool]]:
    """Each `self.drafter`, and whether a condition around it asks for the last stage."""
    for child in ast.iter_child_nodes(tree):
        inside = conditions
        if isinstance(tree, ast.If) and child in tree.body:
            inside = (*conditions, tree.test)
        if (
            isinstance(child, ast.Attribute)
            and child.attr == "drafter"
            and isinstance(child.value, ast.Name)
        ):
            yield child, any("last_rank" in ast.unparse(each) for each in inside)
        yield from drafter_uses(child, inside)


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_the_drafter_is_on_the_last_stage_and_every_stage_asks_for_it(release: str) -> None:
    answer, needs = rows()["pipeline parallelism"]
    assert answer == "vLLM does not start"
    assert "model runner V2" in needs
    source = resolve(release).read(RUNNER)
    assert source is not None
    methods = {
        node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
    }
    made = [
        inside
        for method in methods.values()
        for use, inside in drafter_uses(method)
        if isinstance(use.ctx, ast.Store)
    ]
    assert made
    assert all(made)
    # What every stage does before it serves comes through here.
    asked = methods["_dummy_run"]
    assert any(not inside for _, inside in drafter_uses(asked))
    assert "last_rank" not in ast.unparse(asked)


#: Models of MTP layers, and the last release in which they are refused for their class.
MTP_LAYERS = ("deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp")
LAST_REFUSAL = Version("0.29.0")


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_mtp_layers_are_refused_before_a_process_starts_until_they_count_as_one_stage(
    release: str,
) -> None:
    assert (
        "| MTP layers, 0.20 to 0.29 | before it starts a process: `NotImplementedError" in APPENDIX
    )

    def text(path: str) -> str:
        source = resolve(release).read(f"vllm/{path}")
        assert source is not None
        return source.decode()

    drafts = text("config/speculative.py")
    theirs = "pipeline_parallel_size=target_parallel_config.pipeline_parallel_size," in drafts
    assert theirs == (Version(release) <= LAST_REFUSAL)
    assert theirs or "pipeline_parallel_size=1," in drafts
    assert "self.draft_model_config.verify_with_parallel_config(" in drafts
    refusal = APPENDIX.partition("`NotImplementedError: ")[2].partition("`")[0]
    assert refusal in text("config/model.py")
    for model in MTP_LAYERS:
        assert "SupportsPP" not in text(f"model_executor/models/{model}.py") or not theirs
    # A head's layer is numbered behind those of the target, or of one stage of it.
    of_a_stage = "get_num_layers(", "get_total_num_hidden_layers("
    assert of_a_stage[0] in text("model_executor/models/llama_eagle.py")
    assert of_a_stage[not theirs] in text("model_executor/models/llama_eagle3.py")
