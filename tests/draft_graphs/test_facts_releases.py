"""What the facts of the policy are read from is there, under its name, in each release.

`facts.py` asks for some attributes with a default, because not all releases have them: a new name
in a new release would silently mean that nothing is refused any more.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import Any

import pytest

from overlay.targets.releases import CachedRelease
from overlay.targets.resolution import resolve
from tests.draft_graphs.added_modules import FOLDER, added
from tests.support.covering import each_release

pytestmark = [pytest.mark.network, pytest.mark.parametrize("release", each_release("draft-graphs"))]

connectors: Any = added("connectors")
BASE = "v1/spec_decode/llm_base_proposer.py"
KV = "distributed/kv_transfer"
V1 = f"{KV}/kv_connector/v1"
LMCACHE = f"{V1}/lmcache_integration/vllm_v1_adapter.py"
#: Connectors that act in a layer or hand that to somebody else, by method, as read in all releases;
#: the others do nothing there, so that draft graphs stay.
ACTING = {
    "save_kv_layer": {
        *("ExampleConnector", "FlexKVConnectorV1", "LMCacheConnectorV1", "MoRIIOConnector"),
        *("LMCacheConnectorV1Impl", "MoRIIOConnectorWorker", "MultiConnector"),
        *("P2pNcclConnector", "ExampleHiddenStatesConnector"),  # until 0.23
    },
    "wait_for_layer_load": {
        *("FlexKVConnectorV1", "LMCacheConnectorV1", "LMCacheConnectorV1Impl", "MultiConnector"),
        *("MoRIIOConnector", "MoRIIOConnectorWorker"),  # 0.28 to 0.32
        *("UMBPStoreConnector", "UMBPStoreConnectorWorker"),  # from 0.33
    },
}
LAST = "99"
#: (file, class, attribute) -> the first release that has it, and the first that has not any more.
NAMES: dict[tuple[str, str, str], tuple[str, str]] = {
    ("config/speculative.py", "SpeculativeConfig", "num_speculative_tokens"): ("0", LAST),
    ("config/speculative.py", "SpeculativeConfig", "enforce_eager"): ("0", LAST),
    ("config/speculative.py", "SpeculativeConfig", "disable_padded_drafter_batch"): ("0", LAST),
    ("config/speculative.py", "SpeculativeConfig", "num_speculative_tokens_per_batch_size"): (
        *("0.24", LAST),
    ),
    ("config/parallel.py", "ParallelConfig", "enable_eplb"): ("0", LAST),
    ("config/parallel.py", "ParallelConfig", "use_ubatching"): ("0", LAST),
    ("config/parallel.py", "ParallelConfig", "data_parallel_size"): ("0", LAST),
    ("config/parallel.py", "ParallelConfig", "enable_elastic_ep"): ("0", LAST),
    ("config/parallel.py", "ParallelConfig", "decode_context_parallel_size"): ("0", LAST),
    ("config/parallel.py", "ParallelConfig", "prefill_context_parallel_size"): ("0", LAST),
    ("config/cache.py", "CacheConfig", "calculate_kv_scales"): ("0", "0.28"),
    ("config/cache.py", "CacheConfig", "kv_sharing_fast_prefill"): ("0", LAST),
    ("config/compilation.py", "PassConfig", "enable_sp"): ("0", "0.32"),
    ("config/compilation.py", "CompilationConfig", "max_cudagraph_capture_size"): ("0", LAST),
    ("config/vllm.py", "VllmConfig", "lora_config"): ("0", LAST),
    ("config/model.py", "ModelConfig", "rswa_window"): ("0.25", LAST),
    ("v1/worker/ubatching.py", "", "dbo_enabled"): ("0", LAST),
    ("model_executor/offloader/base.py", "", "get_offloader"): ("0", LAST),
    ("model_executor/offloader/base.py", "", "NoopOffloader"): ("0", LAST),
    ("model_executor/offloader/uva.py", "", "UVAOffloader"): ("0", LAST),
    (f"{KV}/kv_transfer_state.py", "", "has_kv_transfer_group"): ("0", LAST),
    (f"{KV}/kv_transfer_state.py", "", "get_kv_transfer_group"): ("0", LAST),
    (f"{V1}/base.py", "KVConnectorBase_V1", "wait_for_layer_load"): ("0", LAST),
    (f"{V1}/base.py", "KVConnectorBase_V1", "save_kv_layer"): ("0", LAST),
    (f"{V1}/multi_connector.py", "MultiConnector", "_connectors"): ("0", LAST),
    (f"{V1}/lmcache_connector.py", "LMCacheConnectorV1", "_lmcache_engine"): ("0", LAST),
    (LMCACHE, "LMCacheConnectorV1Impl", "use_layerwise"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "parallel_drafting"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "needs_extra_input_slots"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "net_num_new_slots_per_request"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "pass_hidden_states_to_model"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "kv_cache_gid"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "constant_draft_positions"): ("0.21", LAST),
    (BASE, "SpecDecodeBaseProposer", "use_heterogeneous_vocab"): ("0.25", LAST),
    (BASE, "SpecDecodeBaseProposer", "eplb_state"): ("0.25", LAST),
    (BASE, "SpecDecodeBaseProposer", "_share_mtp_indices"): ("0.23", LAST),
    (BASE, "SpecDecodeBaseProposer", "_enable_probabilistic_draft_probs"): ("0.22", LAST),
    (BASE, "SpecDecodeBaseProposer", "supports_mm_inputs"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "uses_xdrope_dim"): ("0", "0.30"),
    (BASE, "SpecDecodeBaseProposer", "draft_uses_xdrope_dim"): ("0", "0.30"),
    (BASE, "SpecDecodeBaseProposer", "max_batch_size"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "max_num_tokens"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "draft_attn_groups"): ("0", LAST),
    (BASE, "SpecDecodeBaseProposer", "eagle3_use_aux_hidden_state"): ("0", LAST),
}


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@functools.cache
def tree(release: str, path: str) -> ast.Module:
    data = resolve(release).read(f"vllm/{path}")
    assert data is not None, path
    return ast.parse(data)


def has(release: str, path: str, cls: str, name: str) -> bool:
    """Whether the class has a field, a property or an attribute of that name; or the module has."""
    module = tree(release, path)
    owners = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and (not cls or node.name == cls)
    ]
    if not cls:
        return any(getattr(node, "name", None) == name for node in module.body)
    assert owners, cls
    assigned = set()
    for node in ast.walk(owners[0]):
        if isinstance(node, ast.FunctionDef):
            assigned.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute):
                assigned.add(target.attr)
            elif isinstance(target, ast.Name):
                assigned.add(target.id)
    return name in assigned


def test_each_name_is_where_it_is_read(release: str) -> None:
    wrong = {
        name: (first, end)
        for name, (first, end) in NAMES.items()
        if has(release, *name) != (number(first) <= number(release) < number(end))
    }
    assert not wrong


def test_every_name_that_may_be_missing_is_known(release: str) -> None:
    """Those that are asked for with a default, in the modules that read facts."""
    known = {name for _, _, name in NAMES}
    for module in ("facts.py", "upstream.py", "drafter.py", "vocabularies.py"):
        text = (FOLDER / "draft_graphs" / module).read_text(encoding="utf-8")
        owners = "proposer|cache|speculative|passes|parallel|model"
        read = re.findall(rf'getattr\((?:{owners}), "(\w+)"', text)
        assert read or module == "drafter.py"
        assert set(read) <= known, module
    assert release


def test_which_connectors_act_in_each_layer(release: str) -> None:
    """By the code that Python makes of their methods, without what these call."""
    resolve(release)
    kept = CachedRelease.open(release)
    acting: dict[str, set[str]] = {name: set() for name in ACTING}
    for path in kept.paths():
        if f"/{V1}/" not in f"/{path}" or not path.endswith(".py"):
            continue
        parts = ast.walk(ast.parse(kept.read(path) or b""))
        for cls in [each for each in parts if isinstance(each, ast.ClassDef)]:
            for method in [each for each in cls.body if isinstance(each, ast.FunctionDef)]:
                name = method.name
                if name in ACTING and not connectors._does_nothing(compiled(method)):
                    acting[name].add(cls.name)
    for name, known in ACTING.items():
        assert acting[name] <= known, name
    assert {"ExampleConnector", "MultiConnector"} <= acting["save_kv_layer"]
    assert "MultiConnector" in acting["wait_for_layer_load"]


def compiled(method: ast.FunctionDef) -> object:
    """A method alone, without its decorators and annotations."""
    names = [*method.args.args, *method.args.kwonlyargs, method.args.vararg, method.args.kwarg]
    for argument in names:
        if argument is not None:
            argument.annotation = None
    method.decorator_list, method.returns = [], None
    scope: dict[str, object] = {}
    exec(compile(ast.Module([method], []), "<method>", "exec"), scope)
    return scope[method.name]


def test_the_contexts_of_micro_batches_are_a_list_of_the_module(release: str) -> None:
    contexts = [
        node.value
        for node in tree(release, "v1/worker/ubatching.py").body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_CURRENT_CONTEXTS"
    ]
    assert [type(each) for each in contexts] == [ast.List]


def test_every_method_that_graphs_take_over_is_upstreams(release: str) -> None:
    text = (FOLDER / "draft_graphs" / "upstream.py").read_text(encoding="utf-8")
    listed = re.search(r"^TAKEN_OVER = \((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    since = {"_sample_draft_tokens": "0.22", "_sample_from_logits": "0.22"}
    since["_update_positions_dependent_metadata"] = "0.21"
    for name in re.findall(r'"(\w+)"', listed[1]):
        there = has(release, BASE, "SpecDecodeBaseProposer", name)
        assert there == (number(since.get(name, "0")) <= number(release)), name


def test_every_proposer_is_granted_or_refused_by_its_class(release: str) -> None:
    """Those that come from upstream's base are known; a new one is refused until it is read."""
    resolve(release)  # fetches it where it is not in the cache
    kept = CachedRelease.open(release)
    proposers = set()
    for path in kept.paths():
        if not path.startswith("vllm/v1/spec_decode/"):
            continue
        data = kept.read(path) or b""
        if b"Proposer(" not in data:
            continue
        for node in ast.parse(data).body:
            bases = {ast.unparse(base).rpartition(".")[2] for base in getattr(node, "bases", ())}
            if bases & {"SpecDecodeBaseProposer", "EagleProposer"}:
                proposers.add(getattr(node, "name", ""))
    assert "EagleProposer" in proposers
    assert proposers - {"EagleProposer"} <= {
        *("DFlashProposer", "DraftModelProposer", "Gemma4Proposer", "Step3p5MTPProposer"),
    }


#: Granted attention backends that build for drafts what they build for a target.
BUILDERS = {
    "flash_attn": "FlashAttentionMetadataBuilder",
    "triton_attn": "TritonAttentionMetadataBuilder",
}
#: What a draft's metadata never has, or what is refused: `decode_context_parallel_size`, prefixes
#: that come from the host (`rswa`, and ranges of multimodal prefixes), and a prefix that requests
#: have in common.
NEVER = re.compile(r"dcp_world_size|mm_prefix|rswa|use_cascade")
HOST = re.compile(r"cpu$|^item$|^tolist$|^numpy$|_np$")


def named(node: ast.AST) -> set[str]:
    """The attributes that code names, but for what is done only where `NEVER` says."""
    if isinstance(node, (ast.If, ast.IfExp)) and NEVER.search(ast.unparse(node.test)):
        orelse = node.orelse if isinstance(node.orelse, list) else [node.orelse]
        return {name for each in orelse for name in named(each)}
    attributes = {node.attr} if isinstance(node, ast.Attribute) else set()
    return attributes | {name for each in ast.iter_child_nodes(node) for name in named(each)}


@pytest.mark.parametrize("backend", BUILDERS)
def test_granted_builders_look_at_no_length_on_the_host(release: str, backend: str) -> None:
    path = f"v1/attention/backends/{backend}.py"
    (builder,) = [
        node
        for node in tree(release, path).body
        if isinstance(node, ast.ClassDef) and node.name == BUILDERS[backend]
    ]
    methods = {node.name: node for node in builder.body if isinstance(node, ast.FunctionDef)}
    assert "build_for_drafting" not in methods
    assert not [name for name in named(methods["build"]) if HOST.search(name)]
    # The search does find such names, where it looks.
    assert named(ast.parse("if a:\n  b.cpu()\nif use_cascade:\n  c.item()\nelse:\n  d.e")) == {
        "cpu",
        "e",
    }


def test_metadata_for_drafts_is_a_fast_build(release: str) -> None:
    (builder,) = [
        node
        for node in ast.walk(tree(release, "v1/attention/backend.py"))
        if isinstance(node, ast.ClassDef) and node.name == "AttentionMetadataBuilder"
    ]
    (function,) = [
        node
        for node in builder.body
        if isinstance(node, ast.FunctionDef) and node.name == "build_for_drafting"
    ]
    (returned,) = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    text = ast.unparse(returned)
    assert text.startswith("return self.build(")
    assert "common_prefix_len=0" in text
    assert "fast_build=True" in text
