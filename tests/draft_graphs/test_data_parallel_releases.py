"""What vLLM makes of data parallelism, read from the sources of every known release.

A target without experts has ranks that know nothing of each other, however they are started; the
draft graphs rely on it without looking. And all that a drafter asks other ranks goes through one
function, which the feature hooks, as long as the forward context is told how many tokens there are.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.draft_graphs.added_modules import FOLDER
from tests.support.covering import each_release

pytestmark = [pytest.mark.network, pytest.mark.parametrize("release", each_release("draft-graphs"))]

ASKS = "coordinate_batch_across_dp"


@functools.cache
def source(release: str, path: str) -> ast.Module:
    data = resolve(release).read(f"vllm/{path}")
    assert data is not None
    return ast.parse(data)


def scope(tree: ast.AST, *names: str) -> ast.AST:
    """The class or function of that name, the first one found, and what is named in it."""
    for name in names:
        tree = next(
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name
        )
    return tree


def ifs(tree: ast.AST) -> Iterator[ast.If]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.If))


def makes_one_rank(statements: list[ast.stmt], release: str) -> bool:
    """Whether they set the number of data-parallel ranks to one, themselves or by a call."""
    text = "\n".join(map(ast.unparse, statements))
    if "reconfigure_for_independent_dp_rank()" in text:
        function = scope(
            source(release, "config/parallel.py"), "reconfigure_for_independent_dp_rank"
        )
        text = ast.unparse(function).replace("self.", "parallel_config.")
    return "parallel_config.data_parallel_size = 1\n" in text


def test_an_engine_process_of_a_dense_target_is_alone(release: str) -> None:
    function = scope(source(release, "v1/engine/core.py"), "EngineCoreProc", "run_engine_core")
    (choice,) = [node for node in ifs(function) if "is_moe" in ast.unparse(node.test)]
    assert ast.unparse(choice.test) == "data_parallel and vllm_config.model_config.is_moe"
    assert "DPEngineCoreProc(" in ast.unparse(choice.body[-1])
    assert makes_one_rank(choice.orelse, release)
    assert "= EngineCoreProc(" in ast.unparse(choice.orelse[-1])


def test_an_engine_of_a_dense_target_under_ray_is_alone(release: str) -> None:
    choices = [
        node
        for node in ast.walk(source(release, "v1/engine/utils.py"))
        if isinstance(node, ast.IfExp) and "DPMoEEngineCoreActor" in ast.unparse(node)
    ]
    assert choices
    for choice in choices:
        assert "model_config.is_moe" in ast.unparse(choice.test)
        assert ast.unparse(choice.orelse) == "EngineCoreActor"
    actor = scope(source(release, "v1/engine/core.py"), "EngineCoreActor", "__init__")
    assert isinstance(actor, ast.FunctionDef)
    assert makes_one_rank(actor.body, release)


def test_offline_ranks_of_a_dense_target_are_refused(release: str) -> None:
    function = scope(source(release, "config/parallel.py"), "ParallelConfig", "__post_init__")
    (refused,) = [node for node in ifs(function) if "is_moe_model is False" in ast.unparse(node)][
        -1:
    ]
    assert ast.unparse(refused.test) == "self.data_parallel_size > 1 and self.is_moe_model is False"
    assert isinstance(refused.body[0], ast.Raise)


def test_several_ranks_in_one_process_are_refused_but_for_an_external_launcher(
    release: str,
) -> None:
    function = scope(source(release, "entrypoints/llm.py"), "LLM", "__init__")
    (refused,) = [node for node in ifs(function) if "_dp_size > 1" in ast.unparse(node.test)]
    assert "external_launcher" in ast.unparse(refused.test)
    assert isinstance(refused.body[0], ast.Raise)


def test_a_drafter_asks_other_ranks_in_one_function_only(release: str) -> None:
    tree = source(release, "v1/spec_decode/llm_base_proposer.py")
    asking = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Name) and each.id == ASKS for each in ast.walk(node))
    ]
    assert asking == ["_determine_batch_execution_and_padding"]


def test_every_pass_of_a_drafter_tells_its_forward_context_the_counts(release: str) -> None:
    """All that the policy may leave to upstream: `propose_tree` is for a refused backend."""
    cls = scope(source(release, "v1/spec_decode/llm_base_proposer.py"), "SpecDecodeBaseProposer")
    for name in ("propose", "dummy_run"):
        contexts = [
            node
            for node in ast.walk(scope(cls, name))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "set_forward_context"
        ]
        assert contexts
        for context in contexts:
            assert "num_tokens_across_dp" in {keyword.arg for keyword in context.keywords}


def test_a_forward_context_that_is_told_asks_nobody(release: str) -> None:
    function = scope(source(release, "forward_context.py"), "set_forward_context")
    asking = [node for node in ifs(function) if ASKS in ast.unparse(node)]
    innermost = min(asking, key=lambda node: len(ast.unparse(node)))
    assert "num_tokens_across_dp is None" in ast.unparse(innermost.test)


def test_what_the_ranks_vote_with_is_there(release: str) -> None:
    groups = source(release, "distributed/parallel_state.py")
    for name in ("get_dp_group", "get_tp_group"):
        assert scope(groups, name)
    assert "self.cpu_group" in ast.unparse(scope(groups, "GroupCoordinator"))
    context = scope(source(release, "forward_context.py"), "set_forward_context")
    assert isinstance(context, ast.FunctionDef)
    assert "num_tokens_across_dp" in {argument.arg for argument in context.args.args}


def other_ranks() -> re.Pattern[str]:
    """`ranks._OTHER_RANKS`, out of a module that only torch can import."""
    text = (FOLDER / "draft_graphs" / "coupling.py").read_text(encoding="utf-8")
    match = re.search(r'^_OTHER_RANKS = re\.compile\(r"(.*)"\)$', text, re.MULTILINE)
    assert match is not None
    return re.compile(match[1])


OTHER_RANKS = other_ranks()
#: What EAGLE heads of Llama's kind are made of.
DENSE = (
    "models/llama.py",
    "models/llama_eagle.py",
    "models/llama_eagle3.py",
    "layers/activation.py",
    "layers/attention/attention.py",
    "layers/layernorm.py",
    "layers/linear.py",
    "layers/logits_processor.py",
    "layers/vocab_parallel_embedding.py",
)
EXPERTS = (
    ("models/qwen3_moe.py", "Qwen3MoeSparseMoeBlock"),
    ("models/deepseek_v2.py", "DeepseekV2MoE"),
    ("models/mixtral.py", "MixtralMoE"),
)


def names(tree: ast.AST) -> set[str]:
    """The names and attributes that code has."""
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return named | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("path", DENSE)
def test_layers_of_eagle_heads_name_no_other_rank(release: str, path: str) -> None:
    named = names(source(release, f"model_executor/{path}"))
    assert not [name for name in named if OTHER_RANKS.search(name)]


@pytest.mark.parametrize(("path", "name"), EXPERTS)
def test_layers_of_experts_name_other_ranks(release: str, path: str, name: str) -> None:
    named = names(scope(source(release, f"model_executor/{path}"), name))
    assert [name for name in named if OTHER_RANKS.search(name)]


def test_an_idle_rank_runs_as_many_tokens_as_a_request_verifies(release: str) -> None:
    """So it has a FULL graph in the agreement, and does not take those of the others from them."""
    worker = scope(source(release, "v1/worker/gpu_worker.py"), "Worker", "execute_dummy_batch")
    text = ast.unparse(worker)
    assert "uniform_decode_query_len" in text
    assert "uniform_decode=True" in text


def test_the_least_vote_is_the_mode_and_only_none_leaves_sizes_apart(release: str) -> None:
    """A vote below all modes reaches every rank, and pads all of them to one size."""
    utils = source(release, "v1/worker/dp_utils.py")
    mode = ast.unparse(scope(utils, "_post_process_cudagraph_mode"))
    assert "int(tensor[3, :].min().item())" in mode
    assert "synced_cudagraph_mode != 0" in ast.unparse(scope(utils, "_synchronize_dp_ranks"))


@functools.cache
def patched(release: str, path: str) -> ast.Module:
    """A file of vLLM as the draft graphs leave it."""
    features = [each for each in load([shipped_folder()]) if each.id == "draft-graphs"]
    target = resolve(release)
    changes = plan(features, target, target.release, target.record, Syntax()).changes
    (after,) = [change.after for change in changes if change.path == f"vllm/{path}"]
    assert after is not None
    return ast.parse(after)


def test_a_rank_without_room_joins_the_draft_passes(release: str) -> None:
    """By upstream's own line from 0.25 on, by the feature's hunk before; never by both."""
    path = "v1/worker/gpu_model_runner.py"
    joins = "self.drafter.dummy_run(num_tokens=1)"
    upstreams = ast.unparse(scope(source(release, path), "GPUModelRunner", "sample_tokens"))
    assert (joins in upstreams) == (Version(release) >= Version("0.25"))
    function = scope(patched(release, path), "GPUModelRunner", "sample_tokens")
    (padded,) = [node for node in ifs(function) if ast.unparse(node.test) == "use_gpu_toks"]
    branch = "\n".join(map(ast.unparse, padded.body))
    assert branch.count(joins) == 1
    (alone,) = [
        node
        for node in ifs(ast.Module(padded.body, []))
        if joins in "\n".join(map(ast.unparse, node.body)) and "data_parallel" in ast.unparse(node)
        if "data_parallel_size > 1" in ast.unparse(node.test)
    ]
    without_room = "not input_fits_in_drafter" in ast.unparse(alone.test) or any(
        alone in ast.walk(ast.Module(node.orelse, []))
        for node in ifs(ast.Module(padded.body, []))
        if ast.unparse(node.test) == "input_fits_in_drafter"
    )
    assert without_room, "a rank with room runs dummy passes, too"


def test_the_targets_agreement_is_kept_where_all_ranks_have_the_same(release: str) -> None:
    """Behind the line that makes this rank's batch as large as all others."""
    path = "v1/worker/gpu_model_runner.py"
    function = scope(
        patched(release, path), "GPUModelRunner", "_determine_batch_execution_and_padding"
    )
    text = ast.unparse(function)
    same = text.index("assert batch_descriptor.num_tokens == num_tokens_padded")
    assert text.index("draft_graphs.agree(cudagraph_mode, num_tokens_padded)") > same
    veto, asked = text.index("draft_graphs.vetoes()"), text.index("coordinate_batch_across_dp(")
    assert veto < asked < same
