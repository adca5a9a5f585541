"""What must hold around every call of the draft graphs, whatever they draft.

A call of `DraftGraphs.propose` or `.later_steps` that used graphs must have run no Python of the
draft model, written only the KV slots of the live requests' next tokens (or the null block), left
the runner's tensors alone, and returned memory that belongs to no graph.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from tests.draft_graphs import graph_safe_attention
from tests.draft_graphs.junk import Junk
from tests.draft_graphs.recorded_backend import RecordedBackend
from tests.draft_graphs.recorded_graph import RecordedGraph


class AuditFailed(AssertionError):
    """A draft graph did what it must not."""


class Audit:
    """Wraps the two entries of one proposer's draft graphs, and counts what passes through.

    zero_null_block: as in `harness.Plan`.

    used: calls that graphs answered, by "entry requests". declined: calls that they left to
    upstream's code; missed: those of them that a captured graph could have held. replays: by
    "role size". model_calls: of the draft model's Python in all; python_calls: of those, the
    ones inside the entries.
    """

    def __init__(
        self, runner: Any, backend: RecordedBackend, *, zero_null_block: bool = False
    ) -> None:
        self.zero_null_block = zero_null_block
        self.runner, self.backend, self.proposer = runner, backend, runner.drafter
        self.used: Counter[str] = Counter()
        self.declined: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.replays: Counter[str] = Counter()
        self.python_calls = self.model_calls = 0
        self._inside = False
        self._live = 0
        context = self.proposer.vllm_config.compilation_config.static_forward_context
        self._caches = [
            context[name].kv_cache
            for group in self.proposer.draft_attn_groups
            for name in group.layer_names
        ]

    @contextlib.contextmanager
    def untouched_by_capture(self) -> Iterator[None]:
        """Demand that inside no KV cell changes but those of the null block."""
        before = [cache.clone() for cache in self._caches]
        yield
        allowed = self._null_block()
        for cache, old in zip(self._caches, before, strict=True):
            self._check_slots("capture", cache, old, allowed)

    def watch(self) -> None:
        """Look at every call from now on."""
        graphs = self.proposer.draft_graphs
        if graphs is None:
            return
        captured = graphs.captured
        self._junk = None
        if captured is not None:
            self._junk = Junk(self.proposer, captured.buffers, self._slots_in_all())
            self._keys = {id(graph): key for key, graph in captured.graphs.items()}
            self.backend.before_replay = self._before_replay
            for key, graph in captured.graphs.items():
                self._expect_entered(key, graph)
        for entry in ("propose", "later_steps"):
            setattr(graphs, entry, self._audited(entry, getattr(graphs, entry)))
        model = self.proposer.model
        forward = type(model).forward

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.python_calls += self._inside
            self.model_calls += 1
            return forward(model, *args, **kwargs)

        model.forward = counted

    def _expect_entered(self, key: Any, graph: RecordedGraph) -> None:
        """The attention layer is a Python operator: recorded as one, its Python would replay."""
        entered = any("unified_attention_with_output" in name for name in graph.entered)
        self._expect(entered, f"{key}: attention was not entered, but {list(graph.entered)}")

    def _before_replay(self, graph: RecordedGraph) -> None:
        key = self._keys[id(graph)]
        self.replays[f"{key.role} {key.num_reqs}"] += 1
        if self._junk is not None:
            self._junk.before_replay(key.role, self._live)

    def _audited(self, entry: str, stock: Any) -> Any:
        def call(**kwargs: Any) -> Any:
            common = kwargs["common_attn_metadata"]
            live = common.batch_size()
            allowed = self._slots(entry, kwargs)
            if self.zero_null_block:
                for cache in self._caches:
                    cache[0].zero_()
            before = [cache.clone() for cache in self._caches]
            foreign = {name: tensor.clone() for name, tensor in self._foreign(kwargs)}
            if self._junk is not None:
                self._junk.before_call()
            graph_safe_attention.faults()
            calls, self._inside, self._live = self.python_calls, True, live
            try:
                drafts = stock(**kwargs)
            finally:
                self._inside = False
            if drafts is None:
                self.declined[f"{entry} {live}"] += 1
                self.missed[f"{entry} {live}"] += self._could_hold(entry, kwargs)
                return None
            self.used[f"{entry} {live}"] += 1
            where = f"{entry} with {live} requests"
            self._expect(self.python_calls == calls, f"{where}: Python of the draft model ran")
            for cache, old in zip(self._caches, before, strict=True):
                self._check_slots(where, cache, old, allowed)
            for name, tensor in self._foreign(kwargs):
                same = _same(tensor, foreign[name])
                self._expect(same, f"{where}: {name}, which is the runner's, was written")
            self._check_result(where, drafts, live)
            self._expect_no_faults(where)
            return drafts

        return call

    def _could_hold(self, entry: str, kwargs: dict[str, Any]) -> bool:
        """Whether a captured graph is large enough, and the batch of the kind that it takes."""
        live, k = kwargs["common_attn_metadata"].batch_size(), self.proposer.num_speculative_tokens
        keys = self.proposer.cudagraph_dispatcher.draft_keys
        roles: tuple[str, ...] = ("step", "loop")
        if entry == "propose":
            longest = kwargs["common_attn_metadata"].max_query_len
            tokens = kwargs["target_token_ids"].shape[0]
            if longest != k + 1 or tokens != live * (k + 1):
                return any(
                    key.role == "mixed" and key.num_reqs >= live and key.num_tokens >= tokens
                    for key in keys
                )
            roles = ("first", "whole")
        return any(key.role in roles and key.num_reqs >= live for key in keys)

    @staticmethod
    def _expect(condition: bool, message: str) -> None:
        if not condition:
            raise AuditFailed(message)

    @staticmethod
    def _expect_no_faults(where: str) -> None:
        faults = graph_safe_attention.faults()
        if faults:
            raise AuditFailed(f"{where}: {'; '.join(faults)}")

    def _foreign(self, kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors that the graphs may read but not write."""
        common = kwargs["common_attn_metadata"]
        for name in ("query_start_loc", "query_start_loc_cpu", "seq_lens", "block_table_tensor"):
            yield f"common_attn_metadata.{name}", getattr(common, name)
        for name in ("query_start_loc", "input_ids", "seq_lens", "positions"):
            buffer = getattr(self.runner, name, None)
            tensor = getattr(buffer, "gpu", buffer)
            if isinstance(tensor, torch.Tensor):
                yield f"runner.{name}", tensor
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor):
                yield name, value

    def _slots(self, entry: str, kwargs: dict[str, Any]) -> torch.Tensor:
        """[slots]: those that this call may write."""
        proposer, common = self.proposer, kwargs["common_attn_metadata"]
        # The manager's, which the kernel may cut further: slots count the same in both.
        size = proposer.block_size
        allowed = self._null_block()
        if entry == "propose":
            slots = common.slot_mapping[: kwargs["target_token_ids"].shape[0]]
            allowed[slots[slots >= 0]] = True
            last = kwargs["token_indices_to_sample"]
            if last is None:
                last = common.query_start_loc[1:].long() - 1
            positions = kwargs["target_positions"][last.long()]
        else:
            positions = kwargs["positions"]
        # A draft model has the next token behind the last one, and dflash one more query.
        beyond = 0
        if entry == "propose":
            beyond = {"draft_model": 1, "dflash": 2}.get(proposer.method, 0)
        for step in range(1, proposer.num_speculative_tokens + beyond):
            ahead = positions + step
            rows = torch.nonzero(ahead < proposer.max_model_len).flatten()
            ahead = ahead[rows]
            block = common.block_table_tensor[rows, ahead // size].long()
            allowed[block * size + ahead % size] = True
        return allowed

    def _slots_in_all(self) -> int:
        return int(self._caches[0].shape[0] * self._caches[0].shape[2])

    def _null_block(self) -> torch.Tensor:
        allowed = torch.zeros(self._slots_in_all(), dtype=torch.bool)
        allowed[: self.proposer.block_size] = True
        return allowed

    def _check_slots(
        self, where: str, cache: torch.Tensor, old: torch.Tensor, allowed: torch.Tensor
    ) -> None:
        bits = torch.int16 if cache.element_size() == 2 else torch.int32
        changed = (cache.view(bits) != old.view(bits)).any(3).any(1).flatten() & ~allowed
        if changed.any():
            slots = changed.nonzero().flatten().tolist()[:4]
            raise AuditFailed(f"{where}: wrote KV slots of others: {slots}")

    def _check_result(self, where: str, drafts: torch.Tensor, live: int) -> None:
        shape = (live, self.proposer.num_speculative_tokens)
        self._expect(
            tuple(drafts.shape) == shape and drafts.dtype == torch.int64,
            f"{where}: returned {drafts.dtype}{list(drafts.shape)}, not int64{list(shape)}",
        )
        key = drafts.untyped_storage()._cdata
        of_graphs = any(key in graph.memory for graph in self.backend.graphs)
        self._expect(not of_graphs, f"{where}: the result lies in memory of a graph")


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype.is_floating_point:
        return bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    return bool(torch.equal(a, b))
