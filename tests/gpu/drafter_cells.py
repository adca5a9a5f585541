"""The cells of ``acceptance.py`` for drafters beside EAGLE: draft models, PARD, P-EAGLE, dflash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from overlay.proof.tiny_drafters import LEAST_PROMPT, VOTERS, following, voters_rule
from tests.engine.engine_spec import EngineSpec, Request, make_requests
from tests.gpu.cells import Cell, expects, falling, release_has, replayed, soaking
from tests.gpu.every_size import at_every_size

#: The folder of these models, beside those of ``tiny_models``.
FOLDER = "drafters"
CHECK = {"OVERLAY_DRAFT_GRAPHS_CHECK": "1"}


@dataclass(frozen=True)
class Drafter:
    """One kind of drafter.

    :ivar models: the folder below ``FOLDER``.
    :ivar draft: the model in it.
    :ivar speculative: entries of ``speculative_config``.
    :ivar causal: whether a token of a pass sees only those before it.
    """

    models: str
    draft: str
    speculative: dict[str, Any]
    causal: bool = True

    @property
    def parallel(self) -> bool:
        """Whether it drafts all tokens in one pass."""
        return self.models == "parallel"

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes that differ for it."""
        return ("off", "loop") if self.parallel else ("off", "step", "loop")

    def requests(self, count: int, **more: Any) -> tuple[Request, ...]:
        """Requests that it has an oracle for."""
        if not self.parallel:
            return falling(count, **more)
        more = {"lengths": (LEAST_PROMPT, 39), "vocab": VOTERS, **more}
        return following(voters_rule(), falling(count, **more))

    def at_every_size(self, seqs: int, k: int) -> tuple[Request, ...]:
        """Requests of which each size of a graph is live at some time."""
        if self.parallel:
            rule = voters_rule()
            made = make_requests(seqs, lengths=(LEAST_PROMPT, 18), vocab=VOTERS)
            return at_every_size(seqs, k, rule, following(rule, made))
        return at_every_size(seqs, k)

    def spec(self, base: EngineSpec, k: int, **more: Any) -> EngineSpec:
        """The engine of a cell."""
        models = f"{base.models}/{FOLDER}/{self.models}"
        given: dict[str, Any] = {"k": k, "draft": self.draft, "speculative": self.speculative}
        return replace(base, models=models, **{**given, **more})


DRAFTERS = {
    "draft-model": Drafter("chain", "draft_model", {"method": "draft_model"}),
    "vocabularies": Drafter(
        "vocabularies", "draft_model", {"method": "draft_model", "use_heterogeneous_vocab": True}
    ),
    "pard": Drafter("parallel", "pard", {"method": "draft_model", "parallel_drafting": True}),
    "peagle": Drafter("parallel", "peagle", {"method": "eagle3", "parallel_drafting": True}),
    "dflash": Drafter("parallel", "dflash", {"method": "dflash"}, causal=False),
}


def drafters(base: EngineSpec) -> Iterator[Cell]:
    """Each drafter at several K and at every size, preempted, checked, and in a soak."""
    for name, drafter in DRAFTERS.items():
        # 0.25 and later
        if name == "vocabularies" and not release_has("v1/spec_decode/vocab_mapping.py", ""):
            continue
        for mode in drafter.modes:
            yield from _of(name, drafter, mode, base)
        checked = drafter.spec(base, 3, requests=drafter.requests(24, wave=5), env=CHECK)
        yield Cell(f"{name}-checked", "loop", checked)
        soak = replace(checked, requests=_parallel_soak() if drafter.parallel else soaking())
        yield Cell(f"{name}-soak", "loop", soak, weight=100)


@cache
def _parallel_soak() -> tuple[Request, ...]:
    """`soaking` with prompts that drafters of one pass have an oracle for."""
    return DRAFTERS["pard"].requests(len(soaking()), shortest=60)


def _of(name: str, drafter: Drafter, mode: str, base: EngineSpec) -> Iterator[Cell]:
    wanted = expects(mode)
    eight = drafter.requests(24, wave=5)
    for k in (1, 3, 5):
        yield Cell(f"{name}-k{k}", mode, drafter.spec(base, k, requests=eight), wanted)
    # Not causal from 0.26 on.
    if drafter.causal or release_has("v1/attention/backends/triton_attn.py", "supports_non_causal"):
        triton = drafter.spec(base, 3, requests=eight, attention_backend="TRITON_ATTN")
        yield Cell(f"{name}-triton", mode, triton, wanted)
    scarce: dict[str, Any] = {"block_size": 16, "kv_blocks": 40}
    preempted = drafter.spec(base, 3, requests=drafter.requests(24, shortest=80), **scarce)
    yield Cell(f"{name}-preempted", mode, preempted, wanted)
    small = {**(base.compilation or {}), "cudagraph_capture_sizes": [1, 3, 7, 13, 29]}
    odd = drafter.spec(base, 3, requests=eight, compilation=small)
    yield Cell(f"{name}-odd-sizes", mode, odd, wanted)
    many: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    every = drafter.spec(base, 3, requests=drafter.at_every_size(64, 3), **many)
    yield Cell(f"{name}-every-size64", mode, every, wanted, weight=10, every_size=replayed(mode))
