"""Each fact of the policy is read from where vLLM has it. Needs vLLM.

`test_policy.py` shows what follows from the facts; here one thing at a time is changed in vLLM's
own configuration or proposer, and that fact, and no other, must change.
`test_facts_releases.py` shows that all releases have these things under these names.

Longer than other modules: `test_every_fact_is_read` wants each fact to be changed by a test of it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

# What is imported below needs both of them.
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.draft_graphs.added_modules import added
from tests.draft_graphs.policy_table import names_a_remedy

attention: Any = added("attention")
capabilities: Any = added("capabilities")
facts: Any = added("facts")
policy: Any = added("policy")
drafters: Any = added("drafter")
upstream: Any = added("upstream")
couplings: Any = added("coupling")

#: Every one that `early_facts` or `late_facts` reads.
PROPOSER = {
    "needs_extra_input_slots": False,
    "pass_hidden_states_to_model": True,
    "kv_cache_gid": 0,
    "constant_draft_positions": False,
    "_share_mtp_indices": False,
    "_enable_probabilistic_draft_probs": False,
    "supports_mm_inputs": False,
}


class Backend:
    """A device that has graphs."""

    reason: str | None = None
    platform = capabilities.PLATFORMS[0]
    attention = capabilities.BACKENDS

    def no_graphs(self) -> str | None:
        return self.reason


def instance(path: str) -> Any:
    """An object whose class has this module and name, and nothing of vLLM's."""
    module, _, name = path.rpartition(".")
    return type(name, (), {"__module__": module})()


class Group:
    """An attention group of the draft, as far as facts go."""

    layer_names: tuple[str, ...] = ("draft.0",)

    def __init__(
        self, name: str = "FLASH_ATTN", cls: str | None = None, *, threshold: int | None = None
    ) -> None:
        """cls: module and name of its metadata builder; None for the backend's own."""
        rows = [row for row in capabilities.BACKENDS if name in row.names]
        path = rows[0].classes[0] if rows else f"a.{name}Backend"
        self.backend = type(instance(path))
        self.backend.get_name = lambda: name
        self.builder = instance(cls or (rows[0].builder if rows else f"a.{name}Builder"))
        self.builder.reorder_batch_threshold = threshold

    def get_metadata_builder(self) -> Any:
        return self.builder


FLASH_ATTN = attention.Attention(
    "FLASH_ATTN", "FlashAttentionMetadataBuilder", capabilities.BACKENDS[0], derived=True
)


def stranger(name: str) -> Any:
    """What is known of a backend without a row."""
    return attention.Attention(name, f"{name}Builder")


def make_proposer(cls: type | None = None) -> Any:
    """vLLM's EagleProposer over vLLM's configuration, with the attributes that facts are."""
    from vllm.config import CUDAGraphMode, ModelConfig, SpeculativeConfig, VllmConfig
    from vllm.v1.spec_decode.eagle import EagleProposer

    speculative = object.__new__(SpeculativeConfig)
    wanted = {
        "num_speculative_tokens": 3,
        "enforce_eager": None,
        "disable_padded_drafter_batch": False,
        "num_speculative_tokens_per_batch_size": None,
    }
    assert wanted.keys() <= {field.name for field in fields(SpeculativeConfig)}
    vars(speculative).update(wanted)
    config = VllmConfig()
    config.model_config = object.__new__(ModelConfig)
    architecture = SimpleNamespace(rswa_window=None, is_mm_prefix_lm=False)
    config.model_config.model_arch_config = architecture
    compilation = config.compilation_config
    compilation.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    compilation.max_cudagraph_capture_size = 512
    proposer = object.__new__(cls or EagleProposer)
    vars(proposer).update(
        PROPOSER,
        vllm_config=config,
        speculative_config=speculative,
        model=torch.nn.Module(),
        method="eagle3",
        eagle3_use_aux_hidden_state=False,
        hidden_size=8,
        max_batch_size=128,
        max_num_tokens=2048,
        draft_attn_groups=[Group()],
    )
    layer = SimpleNamespace(impl=SimpleNamespace(vllm_flash_attn_version=3))
    compilation.static_forward_context["draft.0"] = layer
    return proposer


def read(proposer: Any, backend: Any = None) -> Any:
    backend = backend or Backend()
    return facts.late_facts(facts.early_facts(proposer, backend), proposer, backend)


PLAIN = policy.Facts(
    num_speculative_tokens=3,
    drafter=drafters.Drafter(combines=True),
    cudagraph_mode="FULL_AND_PIECEWISE",
    max_num_seqs=128,
    max_capture_tokens=512,
    max_num_tokens=2048,
    attention=(FLASH_ATTN,),
)


def changed(proposer: Any, backend: Any = None) -> dict[str, Any]:
    """The facts that differ from those of a plain configuration, with their values."""
    facts = read(proposer, backend)
    names = [field.name for field in fields(PLAIN)]
    return {
        name: getattr(facts, name) for name in names if getattr(facts, name) != getattr(PLAIN, name)
    }


def test_a_plain_configuration_gets_graphs() -> None:
    plain = read(make_proposer())
    assert plain == PLAIN
    assert policy.decide("auto", plain).later == ("loop",)


def setting(part: str, name: str, value: Any) -> Callable[[Any], None]:
    """Changes what the path `part` of the proposer leads to; it must be there already."""

    def change(proposer: Any) -> None:
        owner = proposer
        for each in filter(None, part.split(".")):
            owner = getattr(owner, each)
        assert hasattr(owner, name), f"{type(owner).__name__} has no {name}"
        object.__setattr__(owner, name, value)

    return change


PARALLEL = "vllm_config.parallel_config"
SPECULATIVE = "speculative_config"
ARCHITECTURE = "vllm_config.model_config.model_arch_config"
#: Fact -> (what is changed, the value that it must have then).
CHANGES: dict[str, tuple[Callable[[Any], None], Any]] = {
    "num_speculative_tokens": (setting(SPECULATIVE, "num_speculative_tokens", 5), 5),
    "enforce_eager": (setting(SPECULATIVE, "enforce_eager", True), True),
    "drafter": (setting("", "method", "mtp"), drafters.Drafter()),
    "constant_draft_positions": (setting("", "constant_draft_positions", True), True),
    "shared_mtp_indices": (setting("", "_share_mtp_indices", True), True),
    "padded_batch_disabled": (setting(SPECULATIVE, "disable_padded_drafter_batch", True), True),
    "decode_context_parallel_size": (setting(PARALLEL, "decode_context_parallel_size", 2), 2),
    "prefill_context_parallel_size": (setting(PARALLEL, "prefill_context_parallel_size", 4), 4),
    "fast_prefill": (setting("vllm_config.cache_config", "kv_sharing_fast_prefill", True), True),
    "rswa": (setting(ARCHITECTURE, "rswa_window", 64), True),
    "dynamic_k": (setting(SPECULATIVE, "num_speculative_tokens_per_batch_size", [(1, 8, 3)]), True),
    "probabilistic": (setting("", "_enable_probabilistic_draft_probs", True), True),
    "multimodal": (setting("", "supports_mm_inputs", True), True),
    "max_num_seqs": (setting("", "max_batch_size", 7), 7),
    "max_num_tokens": (setting("", "max_num_tokens", 600), 600),
    "max_capture_tokens": (
        setting("vllm_config.compilation_config", "max_cudagraph_capture_size", 64),
        64,
    ),
    "attention": (setting("", "draft_attn_groups", [Group("OTHER")]), (stranger("OTHER"),)),
    "tensor_parallel_size": (setting(PARALLEL, "tensor_parallel_size", 2), 2),
}
#: The same facts, from elsewhere.
OTHERWISE: dict[str, tuple[Callable[[Any], None], Any]] = {
    "max_capture_tokens": (
        setting("vllm_config.compilation_config", "max_cudagraph_capture_size", None),
        0,
    ),
    "attention": (
        setting("", "draft_attn_groups", [Group(), Group(cls="a.ChunkedLocalAttentionBuilder")]),
        (
            attention.Attention("FLASH_ATTN", "ChunkedLocalAttentionBuilder", derived=True),
            FLASH_ATTN,
        ),
    ),
}


@pytest.mark.parametrize("table", [CHANGES, OTHERWISE], ids=["", "otherwise"])
def test_one_change_is_one_fact(table: dict[str, tuple[Callable[[Any], None], Any]]) -> None:
    for fact, (change, value) in table.items():
        proposer = make_proposer()
        change(proposer)
        assert changed(proposer) == {fact: value}, fact


def test_a_pass_has_no_more_tokens_than_the_drafter_has_room_for() -> None:
    proposer = make_proposer()
    proposer.max_num_tokens = 100
    assert changed(proposer) == {"max_capture_tokens": 100, "max_num_tokens": 100}


def test_a_device_without_graphs() -> None:
    backend = Backend()
    backend.reason = "nothing can be captured"
    assert changed(make_proposer(), backend) == {"no_graphs": "nothing can be captured"}


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY"])
def test_the_mode_of_the_target(mode: str) -> None:
    from vllm.config import CUDAGraphMode

    proposer = make_proposer()
    proposer.vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode[mode]
    assert changed(proposer) == {"cudagraph_mode": mode}
    early = facts.early_facts(proposer, Backend())
    # vLLM lowers the mode and never raises it: NONE is known before it captures.
    assert early.cudagraph_mode == ("NONE" if mode == "NONE" else None)


def test_a_proposer_with_a_method_of_its_own() -> None:
    for name in upstream.TAKEN_OVER:
        proposer = make_proposer()
        setattr(proposer, name, lambda *args: None)
        assert changed(proposer) == {"overridden_methods": (name,)}


def subclasses() -> Iterator[type]:
    """Every proposer of vLLM's that drafts with a model, and that graphs are not for."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    for name in ("gemma4", "step3p5"):
        module = importlib.import_module(f"vllm.v1.spec_decode.{name}")
        own = [
            each
            for _, each in inspect.getmembers(module, inspect.isclass)
            if issubclass(each, SpecDecodeBaseProposer) and each.__module__ == module.__name__
        ]
        assert own, name
        yield from own


def test_other_proposers_are_refused_by_their_class() -> None:
    for cls in subclasses():
        facts = read(make_proposer(cls))
        assert facts.proposer_class == f"{cls.__module__}.{cls.__name__}"
        if facts.proposer_class in policy.DRAFTERS:
            continue
        decision = policy.decide("auto", facts)
        assert decision.refusals[0].startswith(f"{cls.__name__} drafts otherwise")
        assert names_a_remedy(decision.refusals[0])


def granted_classes() -> Iterator[type]:
    """The classes that graphs are for."""
    for name, cls in (
        ("eagle", "EagleProposer"),
        ("draft_model", "DraftModelProposer"),
        ("dflash", "DFlashProposer"),
    ):
        yield getattr(importlib.import_module(f"vllm.v1.spec_decode.{name}"), cls)


def test_the_classes_that_graphs_are_for_are_vllms() -> None:
    found = {f"{cls.__module__}.{cls.__name__}" for cls in granted_classes()}
    assert found == policy.DRAFTERS


@pytest.mark.parametrize(
    ("number", "attributes", "expected"),
    [
        (0, {"method": "eagle"}, {}),
        (0, {"method": "mtp"}, {}),
        (0, {"method": "eagle3"}, {"combines": True}),
        # P-EAGLE: one pass over 2K tokens; with K=1 that is EAGLE's own.
        (
            0,
            {"method": "eagle3", "needs_extra_input_slots": True, "parallel_drafting": True}
            | {"net_num_new_slots_per_request": 2},
            {"inputs": "extended", "extra": 2, "one_pass": True, "combines": True},
        ),
        (0, {"method": "eagle3", "parallel_drafting": True}, {"combines": True}),
        (
            1,
            {"method": "draft_model", "needs_extra_input_slots": True, "parallel_drafting": False}
            | {"net_num_new_slots_per_request": 1, "pass_hidden_states_to_model": False},
            {"inputs": "extended", "extra": 1, "takes_hidden_states": False, "hands_over": False},
        ),
        (
            2,
            {"method": "dflash"},
            {"inputs": "context", "one_pass": True, "hands_over": False, "combines": True},
        ),
    ],
)
def test_the_kind_of_a_proposer(
    number: int, attributes: dict[str, Any], expected: dict[str, Any]
) -> None:
    proposer = make_proposer(list(granted_classes())[number])
    vars(proposer).update(attributes)
    found = read(proposer)
    assert found.drafter == drafters.Drafter(**expected)
    assert found.overridden_methods == ()
    assert policy.decide("auto", found).first
    # A class that is derived from it may do anything.
    derived = make_proposer(type("Derived", (type(proposer),), {}))
    vars(derived).update(attributes)
    assert read(derived).proposer_class not in policy.DRAFTERS


def test_a_draft_model_in_another_group_than_the_metadata_it_gets() -> None:
    plain, other = make_proposer(), make_proposer(list(granted_classes())[1])
    plain.kv_cache_gid = other.kv_cache_gid = 1
    assert read(plain).unseen_group is None
    assert read(other).unseen_group == 1
    other.kv_cache_gid = 0
    assert read(other).unseen_group is None


def test_data_parallel_ranks_that_change() -> None:
    proposer = make_proposer()
    parallel = proposer.vllm_config.parallel_config
    parallel.data_parallel_size, parallel.enable_elastic_ep = 2, True
    (coupling,) = changed(proposer).values()
    assert coupling.manner is couplings.Manner.REFUSED
    assert "elastic" in coupling.reason
    assert names_a_remedy(coupling.reason)


class Experts(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]  # mypy may see no PyTorch
    """A layer of experts, as far as the place of its class goes."""

    __module__ = "vllm.model_executor.layers.fused_moe.layer"


def test_data_parallel_ranks_with_experts_in_the_draft_draft_together() -> None:
    proposer = make_proposer()
    proposer.model.mlp = Experts()
    assert changed(proposer) == {}, "there is one rank"
    proposer.vllm_config.parallel_config.data_parallel_size = 2
    (coupling,) = changed(proposer).values()
    assert coupling.together
    assert "Experts" in coupling.reason


@pytest.mark.parametrize("backend", ["deepep_low_latency", "nixl_ep"])
def test_buffers_that_alternate_between_the_halves(backend: str) -> None:
    proposer = make_proposer()
    proposer.vllm_config.parallel_config.all2all_backend = backend
    assert changed(proposer) == {"low_latency_exchange": True}


def test_load_balancing_of_experts_is_no_fact() -> None:
    """It moves weights in place, behind the drafts, and graphs read the new ones."""
    proposer = make_proposer()
    proposer.model.mlp = Experts()
    proposer.vllm_config.parallel_config.enable_eplb = True
    assert changed(proposer) == {}


def test_multimodal_prefixes_are_no_fact() -> None:
    """Their ranges lie before the tokens that are drafted from."""
    proposer = make_proposer()
    proposer.vllm_config.model_config.model_arch_config.is_mm_prefix_lm = True
    assert proposer.vllm_config.model_config.is_mm_prefix_lm
    assert changed(proposer) == {}


def test_layers_that_keep_their_adapter() -> None:
    from vllm.lora.layers import BaseLayerWithLoRA

    proposer = make_proposer()
    proposer.model.norm = BaseLayerWithLoRA()
    proposer.model.embed_tokens = BaseLayerWithLoRA()
    proposer.model.embed_tokens.base_layer = torch.nn.Embedding(2, 2)
    assert changed(proposer) == {}, "without LoRA nothing is looked for"
    object.__setattr__(proposer.vllm_config, "lora_config", object())
    assert changed(proposer) == {"adapted_layers": ("norm",)}


def test_sequence_parallelism_of_experts_is_no_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such layers pad inside themselves, so they take any token count."""
    proposer = make_proposer()
    parallel = proposer.vllm_config.parallel_config
    assert not parallel.use_sequence_parallel_moe
    monkeypatch.setattr(type(parallel), "use_sequence_parallel_moe", property(lambda _: True))
    assert changed(proposer) == {}


@pytest.mark.parametrize(("name", "value"), [("enable_dbo", True), ("ubatch_size", 2)])
def test_micro_batching_of_the_target_is_no_fact(name: str, value: object) -> None:
    """The drafter is never split, and drafts when all micro-batches have ended."""
    proposer = make_proposer()
    setattr(proposer.vllm_config.parallel_config, name, value)
    assert proposer.vllm_config.parallel_config.use_ubatching
    assert changed(proposer) == {}


def test_an_offloader_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.offloader import base

    assert base.get_offloader().__class__ is base.NoopOffloader

    for name, found in (
        ("PrefetchOffloader", {"weight_offloader": "PrefetchOffloader"}),
        ("UVAOffloader", {}),
    ):
        cls = type(name, (base.BaseOffloader,), {"wrap_modules": None})
        monkeypatch.setattr(base, "get_offloader", cls)
        assert changed(make_proposer()) == found


def test_first_passes_that_cannot_be_captured() -> None:
    proposer = make_proposer()
    proposer.eagle3_use_aux_hidden_state = True
    (no_first,) = changed(proposer).values()
    assert no_first.startswith("the width of the target's hidden states is not known from the")
    assert names_a_remedy(no_first)
    proposer.model.model = SimpleNamespace(fc=torch.nn.Linear(24, 8))
    assert changed(proposer) == {}
    latent = make_proposer()
    latent.draft_attn_groups = [Group("MLA", threshold=3)]
    facts = changed(latent)
    assert facts["attention"] == (stranger("MLA"),)
    assert facts["no_first"].startswith("attention backend MLA takes K+1 tokens for a prefill (")
    assert names_a_remedy(facts["no_first"])
    assert set(facts) == {"attention", "no_first"}
    latent.draft_attn_groups = [Group("MLA", threshold=4)]
    assert changed(latent) == {"attention": (stranger("MLA"),)}


def test_every_builder_is_asked_whether_it_takes_the_first_pass_for_prefills() -> None:
    """FLASHINFER's native kernels plan prefills on the host, too."""
    proposer = make_proposer()
    native = Group("FLASHINFER", threshold=1)
    native.builder.use_trtllm_decode_attention = False
    proposer.draft_attn_groups = [native]
    facts = read(proposer)
    assert facts.no_first.startswith("attention backend FLASHINFER takes K+1 tokens for a prefill")


@pytest.mark.parametrize(
    ("kernel", "longest", "staged"), [(None, 4, True), (True, 4, True), (True, 3, False)]
)
def test_the_builder_of_aiter_takes_drafts_for_decodes_up_to_the_kernels_length(
    monkeypatch: pytest.MonkeyPatch, kernel: bool | None, longest: int, staged: bool
) -> None:
    """In 0.29 to 0.31 longer ones have the real split where the gluon kernel decodes."""
    proposer, group = make_proposer(), Group("ROCM_AITER_FA", threshold=1)
    module: Any = ModuleType(type(group.builder).__module__)
    if kernel is not None:
        module._pa_gluon_supports = lambda *heads: kernel
        module._PA_GLUON_MAX_QUERY_LEN = longest
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(group.builder).update(num_heads_q=8, num_heads_kv=1, headdim=128)
    proposer.draft_attn_groups = [group]
    assert (read(proposer).no_first is None) == staged


FLASHINFER = {"use_trtllm_decode_attention": True, "dcp_world_size": 1, "cache_dtype": "auto"}
XQA = {"flashinfer_trtllm_api_decode_kernel": SimpleNamespace(value="xqa")}
GEN = {"flashinfer_trtllm_api_decode_kernel": SimpleNamespace(value="trtllm-gen")}


@pytest.mark.parametrize(
    ("attributes", "kernel", "evidence"),
    [
        (FLASHINFER, "trtllm-gen", "doubles"),
        (FLASHINFER | {"cache_dtype": "fp8_e4m3"}, "trtllm-gen fp8", "refused"),
        (FLASHINFER | GEN, "trtllm-gen", "doubles"),
        (FLASHINFER | GEN | {"cache_dtype": "fp8_e4m3"}, "trtllm-gen", "doubles"),
        (FLASHINFER | XQA, "xqa", "doubles"),
        (FLASHINFER | XQA | {"dcp_world_size": 2}, "native", "refused"),
        (FLASHINFER | {"use_trtllm_decode_attention": False}, "native", "refused"),
        (FLASHINFER | {"flashinfer_trtllm_api_decode_kernel": None}, "native", "refused"),
    ],
)
def test_the_kernel_of_flashinfer_is_told_by_its_builder(
    attributes: dict[str, Any], kernel: str, evidence: str
) -> None:
    proposer, group = make_proposer(), Group("FLASHINFER", threshold=4)
    vars(group.builder).update(attributes)
    group.layer_names = ()
    proposer.draft_attn_groups = [group]
    (found,) = read(proposer).attention
    assert (found.row.kernel, found.row.evidence) == (kernel, evidence)


@pytest.mark.parametrize(("hopper", "kernel"), [(True, "xqa hopper"), (False, "xqa")])
def test_xqa_on_hopper_has_a_row_of_its_own(
    monkeypatch: pytest.MonkeyPatch, hopper: bool, kernel: str
) -> None:
    """A GPU has shown it there, from 0.30 on; until 0.29 it takes single tokens there."""
    monkeypatch.setattr(upstream, "on_hopper", lambda: hopper)
    proposer, group = make_proposer(), Group("FLASHINFER", threshold=4)
    vars(group.builder).update(FLASHINFER | XQA | {"use_xqa": True})
    group.layer_names = ()
    proposer.draft_attn_groups = [group]
    (found,) = read(proposer).attention
    assert found.row.kernel == kernel
    assert found.row.evidence == ("gpu" if hopper else "doubles")
    del group.builder.use_xqa
    (found,) = read(proposer).attention
    assert found.row.kernel == "xqa"


@pytest.mark.parametrize("cache", ["auto", "fp8", "fp8_e4m3"])
def test_an_fp8_cache_of_flash_attention_has_a_row_of_its_own(cache: str) -> None:
    proposer = make_proposer()
    layer = proposer.vllm_config.compilation_config.static_forward_context["draft.0"]
    layer.impl.kv_cache_dtype = cache
    (found,) = read(proposer).attention
    assert found.row.kernel == ("fa3" if cache == "auto" else "fa3 fp8")


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_version_of_flash_attention_is_told_by_its_layers(version: int) -> None:
    proposer = make_proposer()
    layer = proposer.vllm_config.compilation_config.static_forward_context["draft.0"]
    layer.impl.vllm_flash_attn_version = version
    (found,) = read(proposer).attention
    assert found.row.kernel == f"fa{version}"


@pytest.mark.parametrize("name", ["FLASH_ATTN_MLA", "TRITON_MLA", "FLASHINFER_MLA", "TRITON_ATTN"])
def test_the_version_that_other_layers_tell_is_not_the_drafts(name: str) -> None:
    """Until 0.22 layers of MLA have the version of FlashAttention that their prefills use."""
    proposer = make_proposer()
    proposer.draft_attn_groups = [Group(name)]
    (found,) = read(proposer).attention
    assert found.row is not None
    assert (found.row.names, found.row.kernel) == ((name,), "")


@pytest.mark.parametrize("fp8", [False, True])
def test_an_fp8_cache_of_flashmla_has_a_row_of_its_own(fp8: bool) -> None:
    proposer, group = make_proposer(), Group("FLASHMLA")
    group.builder.is_fp8_kvcache = fp8
    proposer.draft_attn_groups = [group]
    (found,) = read(proposer).attention
    assert found.row.kernel == ("fp8" if fp8 else "")
    assert found.row.evidence == ("reading" if fp8 else "gpu")


def test_a_class_of_somebody_else_under_a_known_name_is_a_stranger() -> None:
    """As vllm-musa's builder, whose backend calls itself FLASH_ATTN."""
    proposer, group = make_proposer(), Group()
    theirs = instance("vllm_musa.v1.attention.backends.flash_attn.FlashAttentionMetadataBuilder")
    theirs.reorder_batch_threshold = None
    group.builder = theirs
    proposer.draft_attn_groups = [group]
    (found,) = read(proposer).attention
    assert (found.name, found.row) == ("FLASH_ATTN", None)


def test_every_fact_is_read() -> None:
    tested = CHANGES.keys() | {
        *("no_graphs", "cudagraph_mode", "overridden_methods", "adapted_layers"),
        *("unseen_group", "platform", "untried", "low_latency_exchange"),
        *("proposer_class", "coupling", "sequence_parallel", "weight_offloader", "no_first"),
        "per_layer_connectors",  # `test_connectors.py`
    }
    # Releases have these that the installed one has not: see `test_facts_releases.py`.
    assert {field.name for field in fields(policy.Facts)} - tested == {
        "xdrope",
        "computes_kv_scales",
    }


def test_what_only_older_releases_have() -> None:
    proposer = make_proposer()
    proposer.uses_xdrope_dim = 4
    assert changed(proposer) == {}
    proposer.draft_uses_xdrope_dim = 4
    assert changed(proposer) == {"xdrope": True}
    proposer = make_proposer()
    object.__setattr__(proposer.vllm_config.cache_config, "calculate_kv_scales", True)
    assert changed(proposer) == {"computes_kv_scales": True}
    proposer = make_proposer()
    object.__setattr__(proposer.vllm_config.compilation_config.pass_config, "enable_sp", True)
    assert changed(proposer) == {"sequence_parallel": True}


def test_a_builder_without_a_threshold_splits_nothing() -> None:
    """Sparse MLA up to 0.25.1: its backend is refused by name, and nothing is raised."""
    proposer = make_proposer()
    proposer.draft_attn_groups = [Group("SPARSE", threshold=None)]
    assert changed(proposer) == {"attention": (stranger("SPARSE"),)}
