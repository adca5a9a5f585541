# SPDX-License-Identifier: Apache-2.0
"""Withdraws further capture sizes where a capture fails, on all ranks.

vLLM captures its graphs in one call, from the largest size down, and some of them before, to reckon
what they need. Where that raises, all graphs are given back, the sizes become those that vLLM would
have had, and the call is made again. A rank waits for all others before it decides, since none may
go on alone. What cannot be withdrawn is said, and the error is raised as vLLM does: a GPU that
answers no more, ranks that do not meet.
"""

from __future__ import annotations

import datetime
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vllm.logger import init_logger
from vllm.v1.decode_graph_sizes import FEATURE, VARIABLE
from vllm.v1.overlay_effects import idle

logger = init_logger(__name__)

#: How long ranks wait for each other behind a capture. They capture the same sizes in step.
WAIT = datetime.timedelta(seconds=120)


def guard_capture(worker: Any, own: Sequence[int]) -> None:
    """Have a worker's runner withdraw its further sizes where it fails to capture them.

    own: vLLM's own sizes, ascending, which it captures then.
    """
    runner = worker.model_runner
    upstream = {name: getattr(runner, name) for name in _captures(worker)}

    def guarded(name: str) -> Callable[..., Any]:
        @functools.wraps(upstream[name])
        def capture(*given: Any, **named: Any) -> Any:
            failure: Exception | None = None
            result = None
            try:
                result = upstream[name](*given, **named)
            except Exception as error:  # noqa: BLE001 - whatever it is, vLLM's own sizes may go
                failure = error
            reason = _reason_against(worker, failure)
            if reason is None and agreed(int(failure is None)):
                return result
            if reason is not None:
                if failure is None:
                    return result
                _say_why_not(worker, own, reason)
                raise failure
            vars(runner).update(upstream)
            text = "on another rank" if failure is None else f"{type(failure).__name__}: {failure}"
            failure = None  # its traceback holds what the capture had allocated
            withdraw(worker, own)
            _report(text, own)
            return upstream[name](*given, **named)

        return capture

    vars(runner).update({name: guarded(name) for name in upstream})


def _captures(worker: Any) -> tuple[str, ...]:
    """The functions of a worker's runner that capture graphs.

    V1 reckons by some captures what its graphs need, V2 by the function that captures all.
    """
    both = ("profile_cudagraph_memory", "capture_model")
    return both[1:] if getattr(worker, "use_v2_model_runner", False) else both


def _say_why_not(worker: Any, own: Sequence[int], reason: str) -> None:
    """Say in the log why a failed capture cannot be withdrawn."""
    logger.error(
        "Decode graph sizes: capturing up to %d tokens failed, and cannot be withdrawn: "
        "%s. %s=off starts with vLLM's own sizes, up to %d.",
        *(worker.vllm_config.compilation_config.cudagraph_capture_sizes[-1], reason),
        *(VARIABLE, own[-1]),
    )


def _reason_against(worker: Any, failure: Exception | None) -> str | None:
    """Why nothing can be withdrawn; all ranks meet here."""
    import torch
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    if group.world_size > 1:
        try:
            torch.distributed.monitored_barrier(group=group.cpu_group, timeout=WAIT)
        except RuntimeError as error:
            return f"not all ranks came to the end of their captures ({error})"
    if failure is None:
        return None
    if getattr(worker.vllm_config.compilation_config, "cudagraph_mm_encoder", False):
        return "the encoder's graphs are captured once"
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return f"the GPU answers no more ({error})"
    return None


def agreed(number: int) -> int:
    """The smallest number of all ranks, each of which has to call this."""
    import torch
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    if group.world_size == 1:
        return number
    smallest = torch.tensor([number], dtype=torch.int32)
    torch.distributed.all_reduce(smallest, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)
    return int(smallest.item())


def withdraw(worker: Any, own: Sequence[int]) -> None:
    """Give all graphs back, and have each part that chooses graphs know vLLM's own sizes alone."""
    import torch

    runner = worker.model_runner
    compilation = worker.vllm_config.compilation_config
    owners = [runner, *filter(None, (getattr(runner, name, None) for name in _DRAFTERS))]
    parts = [part for owner in owners for part in vars(owner).values() if _chooses_graphs(part)]
    # As the runner has rounded them for drafts; no further size is rounded below vLLM's largest.
    sizes = [size for size in compilation.cudagraph_capture_sizes if size <= own[-1]]
    for each in (compilation, *(part.compilation_config for part in parts)):
        each.cudagraph_capture_sizes = list(sizes)
        each.max_cudagraph_capture_size = sizes[-1]
    for wrapper in _wrappers():
        wrapper.clear_all_graphs()
    for part in parts:
        if hasattr(part, "cudagraph_keys"):
            for keys in part.cudagraph_keys.values():
                keys.clear()
            if part.keys_initialized:
                part.initialize_cudagraph_keys(part.cudagraph_mode, part.uniform_decode_query_len)
        else:
            part.graphs.clear()
            part._candidates, part._capture_descs = type(part._candidates)(), {}
            part._graphs_captured = False
            part._init_candidates()
    gc.collect()
    torch.cuda.empty_cache()


#: The attributes of a runner that draft, on model runner V1 and V2.
_DRAFTERS = ("drafter", "speculator")


def _chooses_graphs(part: Any) -> bool:
    """Whether it is a dispatcher of model runner V1, or a manager of V2."""
    names = {name for cls in type(part).__mro__ for name in vars(cls)}
    return "initialize_cudagraph_keys" in names or "_init_candidates" in names


def _wrappers() -> Iterator[Any]:
    """The classes that keep graphs of pieces, or of a whole model on V1."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    yield CUDAGraphWrapper
    try:
        from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper
    except ImportError:  # before 0.22.0
        return
    yield BreakableCUDAGraphWrapper


def _report(failure: str, own: Sequence[int]) -> None:
    """Say in the log, and as the feature's effect, what was withdrawn."""
    text = f"vLLM's own sizes, up to {own[-1]} tokens, since capturing further ones failed: "
    text += failure.partition("\n")[0][:300]
    idle(FEATURE, text)
    logger.warning("Decode graph sizes: %s", text)
