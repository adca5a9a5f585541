# SPDX-License-Identifier: Apache-2.0
"""Lengths of the later draft passes, without the tokens that verification has rejected.

Pass 0 of a draft runs over the tokens of the step, rejected ones among them, and needs their
lengths.  Passes 1 to K-1 run over one new token a request, at the position behind the last accepted
token: their keys end there.  vllm-ascend adds 1 a pass to the lengths of pass 0, so that the later
passes also attend to the keys of rejected tokens, and to what earlier steps left behind these.

Lengths are in two places, and each has its half here:

- on the device, for operators that read a tensor (SFA, DSA): `on_device`;
- on the host, as lists of integers, for operators whose tiling is computed at launch (FIA in dense
  and MLA models).  The counts of rejected tokens are still being computed when the lists are made.
  So `on_host` starts a copy of the counts and puts a `LaterLengths` in the place of each list, and
  whoever is about to use one settles it, which waits for the copy: `before_pass` where passes are
  launched one by one, `in_order` and `tasks_in_order` where a graph is replayed and its tasks get
  new lists.  Pass 0 has been launched by then, so the device has work while the host waits.

OVERLAY_ASCEND_DRAFT_LENGTHS=off|device|on chooses the halves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.logger import logger

FEATURE = "ascend-draft-lengths"
SWITCH = "OVERLAY_ASCEND_DRAFT_LENGTHS"

_told: set[str] = set()

try:
    # Of vLLM's own features, where they are applied: so `overlay status` sees this one, too.
    from vllm.v1 import overlay_effects as effects
except ImportError:
    effects = None


def on_device(proposer: Any, common: Any, batch_size: int, rejected: torch.Tensor | None) -> Any:
    """The metadata that the later passes start from, with lengths of its own.

    Nothing is changed in place: pass 0 and the model runner read the same tensor.

    :param common: its `seq_lens` has [batch_size or more] lengths; rows from `batch_size` on are
        padding and keep what they have.
    :param rejected: [batch_size] counts on the device; `None` where nothing was verified.
    :returns: `common`, or a copy of it where there is something to subtract.
    """
    if rejected is None:
        return common
    if (choice := chosen()) == "off":
        _tell("idle", f"{SWITCH}=off")
        return common
    if (reason := _other_layouts(proposer)) is not None:
        _tell_idle(reason)
        return common
    corrected = proposer.shallow_copy_metadata(common)
    corrected.seq_lens = common.seq_lens.clone()
    corrected.seq_lens[:batch_size] -= rejected[:batch_size]
    _tell("active", f"lengths on the device leave rejected tokens out ({SWITCH}={choice})")
    return corrected


def on_host(
    proposer: Any,
    passes: list[dict[str, Any]],
    batch_size: int,
    rejected: torch.Tensor | None,
) -> None:
    """Put a `LaterLengths` in the place of each host list of passes 1 to K-1.

    :param passes: for each pass its metadata by layer.
    :param rejected: as in `on_device`.
    """
    if rejected is None:
        return
    if (choice := chosen()) == "off":
        _tell("idle", f"{SWITCH}=off")
    if choice != "on":
        return
    owners = [_owners(layers.values()) for layers in passes[1:]]
    if not any(owners):
        # One pass only, or operators that read lengths on the device, where the other half, if this
        # release needs it, has told what it does.
        if not _told:
            _tell("idle", "no later pass reads lengths on the host")
        return
    if (reason := _other_layouts(proposer) or _other_lists(proposer)) is not None:
        _tell_idle(reason)
        return
    base = proposer.runner.optimistic_seq_lens_cpu[:batch_size].tolist()
    counts = _Counts(proposer, rejected[:batch_size])
    for draft_index, owners_of_pass in enumerate(owners, 1):
        for owner in owners_of_pass:
            owner.seq_lens_list = LaterLengths(
                owner.seq_lens_list, draft_index, base, proposer.max_model_len, counts
            )
    _tell("active", f"later passes attend to accepted tokens only ({SWITCH}=on)")


class LaterLengths(list[int]):
    """The lengths of one later pass: those that vllm-ascend computed, until `settle`.

    It is a list, because that is what the operators take; they read its storage, so it is changed
    in place.

    :param draft_index: the number of the pass, from 1 on.
    :param base: lengths of pass 0 by request, rejected tokens among them.
    :param longest: the longest context; a request that would exceed it has a filler as its length.
    """

    def __init__(
        self, lengths: list[int], draft_index: int, base: list[int], longest: int, counts: _Counts
    ) -> None:
        super().__init__(lengths)
        self._draft_index, self._base, self._longest = draft_index, base, longest
        self._counts: _Counts | None = counts

    def settle(self) -> None:
        """Take the rejected tokens off, once; waits until their counts have reached the host.

        Padded rows and rows beyond the longest context stay as they are.  So does a row whose
        length is not that of pass 0 plus 1 a pass, which is said once.
        """
        counts, self._counts = self._counts, None
        if counts is None:
            return
        # Rows without a count are padding.
        rows = zip(self, self._base, counts.wait(), strict=False)
        for row, (length, base, count) in enumerate(rows):
            grown = base + self._draft_index
            # From the longest context on, releases differ in which row gets a filler.
            if grown < self._longest and length != grown:
                # In the log only: a process that serves drafts already goes on serving.
                _log_once(
                    "a row is left as vllm-ascend makes it, its length in a later pass is not that "
                    "of pass 0 plus 1 a pass"
                )
            elif grown - count <= self._longest:
                self[row] = grown - count


def before_pass(passes: list[dict[str, Any]] | None, draft_index: int) -> None:
    """Settle the lengths of a pass that is about to be launched; pass 0 has been."""
    if passes:
        _settle(passes[draft_index])


def in_order(passes: Any) -> Any:
    """The metadata of a draft whose graph is being replayed: read in the order of the passes.

    The lengths of a later pass are settled when its metadata is first asked for, so that the tasks
    of pass 0 are updated before the host waits.

    :param passes: for each pass its metadata by layer; `None` for a target model.
    """
    if not passes:
        return passes
    return [passes[0], *map(_LaterPass, passes[1:])]


def tasks_in_order(tasks: Iterable[Any]) -> Iterator[Any]:
    """The tasks of an updatable graph; each with its lengths settled when its turn comes."""
    for task in tasks:
        for argument in task.kwargs.values():
            if isinstance(argument, LaterLengths):
                argument.settle()
        yield task


class _LaterPass(dict[str, Any]):
    """Metadata by layer that settles its lengths before it hands them out."""

    def __getitem__(self, layer: str) -> Any:
        _settle(self)
        return super().__getitem__(layer)

    def get(self, layer: str, default: Any = None) -> Any:
        _settle(self)
        return super().get(layer, default)

    def values(self) -> Any:
        _settle(self)
        return super().values()

    def items(self) -> Any:
        _settle(self)
        return super().items()


class _Counts:
    """Counts of rejected tokens on their way to the host.

    The copy runs on a stream of its own behind what computes the counts, and ahead of the draft's
    graph on the device's stream: so waiting for it never waits for the draft.
    """

    def __init__(self, proposer: Any, rejected: torch.Tensor) -> None:
        if not hasattr(proposer, "rejected_counts"):
            runner = proposer.runner
            host = torch.empty(
                runner.max_num_reqs, dtype=rejected.dtype, pin_memory=runner.pin_memory
            )
            proposer.rejected_counts = torch.npu.Stream(), host
        stream, host = proposer.rejected_counts
        # One draft at a time uses the buffer: it waits for its counts before the next one begins.
        self._host = host[: rejected.shape[0]]
        self._copied = torch.npu.Event()
        self._counts: list[int] | None = None
        device_stream = torch.npu.current_stream()
        with torch.npu.stream(stream):
            stream.wait_stream(device_stream)
            self._host.copy_(rejected, non_blocking=True)
            self._copied.record()

    def wait(self) -> list[int]:
        """The counts by request."""
        if self._counts is None:
            self._copied.synchronize()
            self._counts = self._host.tolist()
        return self._counts


def chosen() -> str:
    """What OVERLAY_ASCEND_DRAFT_LENGTHS says: off, device or on; on where it is empty.

    :raises ValueError: if it says anything else.
    """
    value = os.environ.get(SWITCH) or "on"
    if value not in ("off", "device", "on"):
        raise ValueError(f"{SWITCH}: expected off, device or on, found {value!r}")
    return value


def _owners(metadata: Iterable[Any]) -> list[Any]:
    """The objects of a pass that hold a host list, each once; MLA's is one level down."""
    owners = {id(owner): owner for each in metadata for owner in (getattr(each, "decode", each),)}
    return [
        owner
        for owner in owners.values()
        if isinstance(getattr(owner, "seq_lens_list", None), list)
    ]


def _settle(layers: dict[str, Any]) -> None:
    for owner in _owners(dict.values(layers)):
        if isinstance(owner.seq_lens_list, LaterLengths):
            owner.seq_lens_list.settle()


def _other_layouts(proposer: Any) -> str | None:
    """Why lengths mean something else in this configuration, or `None`."""
    if proposer.parallel_drafting:
        return "parallel drafting has one pass"
    if getattr(proposer, "pcp_size", 1) * proposer.dcp_size > 1:
        return "with context parallelism each rank has lengths of its own"
    if proposer.use_compress:
        return "a compressed KV cache has lengths of its own"
    return None


def _other_lists(proposer: Any) -> str | None:
    """Why host lists are left as vllm-ascend makes them, or `None`."""
    if proposer.enable_enpu:
        return "with enpu a graph gets its lengths before it is replayed"
    if getattr(proposer, "draft_window_size", None) is not None:
        return "a draft window has lengths of its own"
    if getattr(proposer, "constant_draft_positions", False):
        return "the draft model drafts at one position"
    return None


def _tell_idle(reason: str) -> None:
    _tell("idle", f"{reason}: lengths are left as vllm-ascend makes them")


def _tell(state: str, text: str) -> None:
    """Say once in this process what is done here, in the log and to `overlay status`.

    :param state: active or idle.
    """
    if _log_once(f"{state}, {text}") and effects is not None:
        getattr(effects, state)(FEATURE, text)


def _log_once(text: str) -> bool:
    """Write a line into the log, once in this process; whether this was the first time."""
    first = text not in _told
    if first:
        _told.add(text)
        logger.info("%s: %s", FEATURE, text)
    return first
