"""A release's own rejection sampler of model runner V2, its kernels run by Triton's interpreter.

For a process that starts with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import builtins
import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from hypothesis import strategies as st
from packaging.version import Version
from triton.language.extra import libdevice

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.targets.resolution import resolve
from tests.support.code_edits import Edit, edited
from tests.support.sampling_worlds import StandIn, registered

GPU = "vllm.v1.worker.gpu"
FEATURE = f"{GPU}.spec_decode.greedy_verification"
REJECTION = f"{GPU}.spec_decode.rejection_sampler"
EFFECTS = "vllm.v1.overlay_effects"
#: Modules that are taken from the release; of all others there are stand-ins only.
OWN = {
    FEATURE,
    EFFECTS,
    "vllm.v1.overlay_switches",
    "vllm.v1.sample.greedy_verification",
    REJECTION,
    f"{REJECTION}_utils",
    f"{GPU}.spec_decode.probabilistic_rejection_sampler_utils",
    f"{GPU}.spec_decode.synthetic_rejection_sampler_utils",
    f"{GPU}.input_batch",
    f"{GPU}.sample.gumbel",
    f"{GPU}.sample.output",
    f"{GPU}.sample.sampler",
    f"{GPU}.sample.states",
}
#: Kernels that were started.
launches: list[str] = []
#: In each cell of an output that nobody wrote.
MARK = 77
SLOTS = 6


class Backed:
    """Instead of a tensor that host and device share."""

    def __init__(self, size: int, dtype: Any) -> None:
        self.gpu = torch.zeros(size, dtype=dtype)
        self.np = self.gpu.numpy()

    def copy_to_uva(self) -> None:
        pass


def _given() -> dict[str, dict[str, Any]]:
    """What the stand-ins have."""
    return {
        "vllm.triton_utils": {"tl": tl, "triton": triton, "tldevice": libdevice},
        "vllm.config.model": {
            "PROCESSED_LOGPROBS_MODES": ("processed_logits", "processed_logprobs")
        },
        "vllm.v1.spec_decode.utils": {"unconditional_to_conditional_rates": list},
        f"{GPU}.buffer_utils": {"UvaBackedTensor": Backed},
        f"{GPU}.metrics.logits": {"get_num_nans": lambda logits: logits.isnan().sum(-1)},
    }


class World:
    """The modules of one release, imported by each other without ``sys.modules``.

    read: the text of a module of the release by its path, or None.
    """

    def __init__(self, release: str, read: Callable[[str], str | None]) -> None:
        self.release = release
        self._read = read
        self._modules: dict[str, Any] = {}
        self._given = _given()
        self._builtins = vars(builtins) | {"__import__": self._import}

    def module(self, name: str) -> Any:
        """A module, run if it was not yet."""
        if name not in self._modules:
            text = self._read(name.replace(".", "/") + ".py") if name in OWN else None
            module = StandIn(name) if text is None else ModuleType(name)
            self._modules[name] = module
            vars(module).update(self._given.get(name, {}))
            if text is not None:
                # The interpreter reads a kernel's source as the debugger would.
                file = f"<{name} {id(self)}>"
                linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
                module.__builtins__ = self._builtins  # type: ignore[attr-defined]
                with registered(module):
                    exec(compile(text, file, "exec"), vars(module))
        return self._modules[name]

    def _import(self, name: str, given: Any, local: Any, wanted: Any, level: int = 0) -> Any:
        if name.split(".", maxsplit=1)[0] != "vllm":
            return builtins.__import__(name, given, local, wanted, level)
        module = self.module(name)
        for one in wanted or ():
            if f"{name}.{one}" in OWN:
                setattr(module, one, self.module(f"{name}.{one}"))
        return module


@functools.cache
def world(release: str, patched: bool, bug: Edit | None = None) -> World:
    """A release without or with the feature; bug: an edit of the feature's module."""
    target = resolve(release)
    features = [one for one in load([shipped_folder()]) if one.id == "greedy-verification"]
    changes = plan(features, target, target.release).changes
    changed = {one.path: one.after if patched else one.before for one in changes}

    def read(path: str) -> str | None:
        found = changed[path] if path in changed else target.read(path)
        if found is None:
            return None
        text = found.decode()
        if bug is not None and path == bug[0]:
            text = edited(text, [bug[1:]], path)
        return text

    return World(release, read)


@dataclass(frozen=True)
class Batch:
    """What a step verifies.

    drafts: of each request.  prefills: of each request, where its prefill ends: -2 before the
    step, -1 where the step begins, 0 within, 1 behind it.  width: logits of a row.  seed: draws
    the rest.
    """

    method: str
    steps: int
    drafts: tuple[int, ...]
    prefills: tuple[int, ...]
    width: int
    dtype: Any
    draft_logits: int | None
    nan: bool
    seed: int


def methods(release: str) -> tuple[str, ...]:
    """Those by which a release accepts drafts, and the feature's path serves."""
    if Version(release) < Version("0.21"):
        return "strict", "probabilistic"
    return (
        ("standard",) if Version(release) < Version("0.25") else ("standard", "block", "synthetic")
    )


@st.composite
def batches(draw: st.DrawFn, release: str) -> Batch:
    """Batches of plain greedy requests."""
    steps = draw(st.integers(1, 4))
    lengths = st.integers(0, steps) | st.just(steps)
    drafts = tuple(draw(st.lists(lengths, min_size=1, max_size=SLOTS)))
    # A chunk of a prefill has no drafts.
    prefills = tuple(draw(st.sampled_from((-2, -1, 0) if d else (-2, -1, 0, 1))) for d in drafts)
    width = draw(st.sampled_from((1, 7, 100, 1024, 1025, 8192, 8193, 17000)))
    method = draw(st.sampled_from((*methods(release), methods(release)[-1])))
    return Batch(
        method,
        steps,
        drafts,
        prefills,
        width,
        draw(st.sampled_from((torch.float32, torch.bfloat16, torch.float16))),
        # In some releases all methods want them.
        draw(st.sampled_from((0, 5)))
        if method == "probabilistic"
        else draw(st.sampled_from((None, 0, 5))),
        # Until 0.27 a NaN may become an index that is not one.
        Version(release) >= Version("0.28") and draw(st.booleans()),
        draw(st.integers(0, 1 << 30)),
    )


class Drawn:
    """The tensors of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.random = torch.Generator().manual_seed(batch.seed)
        requests, rows = len(batch.drafts), sum(batch.drafts) + len(batch.drafts)
        values = self._integers(-2, 3, rows, batch.width).to(batch.dtype)
        values[self._chance(0.1, rows, batch.width)] = float("-inf")
        values[self._chance(0.1, rows)] = float("-inf")
        # A row's largest may be anywhere, and stand twice.
        for row in self._chance(0.7, rows).nonzero().flatten():
            columns = self._integers(0, batch.width, 1 + int(row) % 2)
            values[row, torch.where(self._chance(0.4, 1), batch.width - 1, columns)] = 5
        if batch.nan:
            # Upstream's blocks have 1,024 and 8,192 logits; none is all NaN.
            values[self._chance(0.1, rows, batch.width)] = float("nan")
            values[:, ::1024] = 1
        # A view of something wider, as where a vocabulary is padded.
        padded = torch.full((rows, batch.width + 3), 9.0, dtype=batch.dtype)
        padded[:, : batch.width] = values
        self.logits = padded[:, : batch.width]
        self.slots = torch.randperm(SLOTS, generator=self.random)[:requests].int()
        self.counts = torch.tensor(batch.drafts) + 1
        self.cu = torch.cat([torch.zeros(1), self.counts.cumsum(0)]).int()
        more = self._integers(0, 3, requests) * (self.counts == 1)
        tokens = self.counts + more
        starts, ends = self._integers(1, 9, requests), tokens.cumsum(0)
        self.seq_lens = (starts + tokens).int()
        self.positions = torch.cat(
            [torch.arange(s, s + n) for s, n in zip(starts, tokens, strict=True)]
        )
        self.rows = torch.cat(
            [torch.arange(e - n, e) for e, n in zip(ends, self.counts, strict=True)]
        )
        self.local = torch.cat([torch.arange(n) for n in self.counts]).int()
        likely = torch.nan_to_num(self.logits.float(), nan=-9.0, neginf=-8.0).argmax(-1)
        self.input_ids = self._integers(0, batch.width, len(self.positions)).int()
        drafted = torch.cat([likely[:1], likely[:-1]])
        drafted = torch.where(
            self._chance(0.25, rows), self._integers(-1, batch.width, rows), drafted
        )
        self.input_ids[self.rows] = drafted.int()
        self.prefill = torch.full((SLOTS,), 99, dtype=torch.int32)
        first = self.seq_lens - self.counts
        ends_at = {-2: starts - 1, -1: first, 0: first + 1, 1: self.seq_lens + 1}
        for request, slot in enumerate(self.slots.tolist()):
            self.prefill[slot] = ends_at[batch.prefills[request]][request]
        self.seeds = self._integers(-(1 << 40), 1 << 40, SLOTS)
        self.rates = torch.rand(batch.steps, generator=self.random)
        self.rates[0] = 0.8  # so that later ones are asked, too

    def _integers(self, low: int, high: int, *shape: int) -> Any:
        return torch.randint(low, high, shape, generator=self.random)

    def _chance(self, share: float, *shape: int) -> Any:
        return torch.rand(shape, generator=self.random) < share


class Case:
    """A RejectionSampler of a release and what it is called with."""

    def __init__(self, here: World, batch: Batch) -> None:
        self.world, self.batch, drawn = here, batch, Drawn(batch)
        self.drawn = drawn
        kind = here.module(f"{GPU}.sample.sampler").Sampler
        self.sampler = sampler = kind.__new__(kind)
        sampler.logprobs_mode, sampler.compute_nans = "raw_logprobs", False
        sampler.use_fp64_gumbel = sampler.use_flashinfer = sampler.use_xpu_sampler = False
        sampler.return_sampling_mask, sampler.num_speculative_tokens = False, batch.steps
        sampler.sampling_states = here.module(f"{GPU}.sample.states").SamplingStates(
            SLOTS, batch.width
        )
        sampler.sampling_states.seeds.gpu.copy_(drawn.seeds)
        sampler.req_states = SimpleNamespace(prefill_len=SimpleNamespace(gpu=drawn.prefill))
        none = torch.zeros(SLOTS, dtype=torch.bool).numpy()
        if Version(here.release) >= Version("0.28"):
            sampler.needs_logits_processing = none
        sampler.logit_bias_state = SimpleNamespace(
            use_logit_bias=none.copy(), apply_logit_bias=lambda *_: None
        )
        sampler.penalties_state = SimpleNamespace(
            use_penalty=none.copy(), apply_penalties=lambda *_: None
        )
        sampler.bad_words_state = SimpleNamespace(
            num_bad_words=Backed(SLOTS, torch.int32), apply_bad_words=lambda *_: None
        )
        # In 0.26 a copy of the logits depends on it.
        sampler.logprob_token_ids_state = SimpleNamespace(max_num_token_ids=lambda _: 0)
        self.spec_config = SimpleNamespace(
            num_speculative_tokens=batch.steps,
            rejection_sample_method=batch.method,
            synthetic_acceptance_rates=drawn.rates.tolist(),
            enable_adaptive_verification=False,
            fly_window_size=1,
            fly_entropy_threshold=0.3,
            fly_entropy_top_k=3,
        )
        size = batch.draft_logits
        self.draft_logits: Any = (
            None if size is None else torch.zeros(SLOTS, batch.steps, batch.width + size)
        )
        self.invalid_drafts: Any = None
        slots = drawn.slots
        self.input_batch = SimpleNamespace(
            num_reqs=len(batch.drafts),
            input_ids=drawn.input_ids,
            positions=drawn.positions,
            logits_indices=drawn.rows,
            cu_num_logits=drawn.cu,
            cu_num_logits_np=drawn.cu.numpy(),
            idx_mapping=slots,
            idx_mapping_np=slots.numpy(),
            expanded_idx_mapping=slots.repeat_interleave(drawn.counts),
            expanded_local_pos=drawn.local,
            seq_lens=drawn.seq_lens,
            seq_lens_cpu_upper_bound=drawn.seq_lens,
        )
        self.kind = here.module(REJECTION).RejectionSampler

    def verify(self) -> dict[str, Any]:
        """All that the release answers, with marks in what nobody wrote; NaN equals NaN."""
        rejection = self.kind(self.sampler, self.spec_config, torch.device("cpu"))
        further = () if self.invalid_drafts is None else (self.invalid_drafts,)
        launches.clear()
        output = rejection(self.drawn.logits, self.input_batch, self.draft_logits, *further)
        return {
            name: [str(value.dtype), value.tolist()] if isinstance(value, torch.Tensor) else value
            for name, value in vars(output).items()
        }


def _note_launches() -> None:
    run = triton.runtime.interpreter.GridExecutor.__call__

    def noted(self: Any, *given: Any, **named: Any) -> Any:
        launches.append(self.fn.__name__)
        return run(self, *given, **named)

    triton.runtime.interpreter.GridExecutor.__call__ = noted


def _mark_what_is_not_written() -> None:
    new_empty = torch.Tensor.new_empty
    torch.Tensor.new_empty = lambda self, *shape, **named: new_empty(self, *shape, **named).fill_(
        MARK
    )


_note_launches()
_mark_what_is_not_written()
