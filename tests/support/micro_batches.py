"""Micro-batches (dual-batch overlap) where there is no DeepEP, for tests alone.

vLLM's configuration wants an all-to-all backend that overlaps, and the layers of experts assert it.
Without it the micro-batches of a step run one after the other (to 0.32), but in the same threads,
with the same metadata, and in the same captures and replays of `UBatchWrapper`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

#: Tokens from which on a batch is split: what one request brings with K = 3.
THRESHOLD = 4
#: Further arguments of an engine whose batches are split as soon as they can be.
ARGUMENTS = {
    "enable_dbo": True,
    "dbo_decode_token_threshold": THRESHOLD,
    "dbo_prefill_token_threshold": THRESHOLD,
}

#: What a target that can be split does with a batch: it runs its micro-batches eagerly, captures
#: them, or replays them; or it runs the batch whole.
DEEDS = ("ran", "captured", "replayed", "whole")


def allow() -> None:
    """Let this process, before it makes an engine, have micro-batches with any backend."""
    from vllm.config import VllmConfig
    from vllm.model_executor.layers.fused_moe import modular_kernel

    stock = VllmConfig.__post_init__

    def post_init(self: Any, *arguments: Any) -> None:
        parallel = self.parallel_config
        wanted, parallel.enable_dbo = parallel.enable_dbo, False
        try:
            stock(self, *arguments)
        finally:
            parallel.enable_dbo = wanted

    VllmConfig.__post_init__ = post_init
    exchange: Any = getattr(modular_kernel, "MoEPrepareAndFinalizeNaiveDPEPModular", None)
    if hasattr(exchange, "supports_dbo"):  # 0.33 and later
        exchange.supports_dbo = lambda self: True
    else:
        # Read by assertions, and by branches for backends that overlap.
        modular_kernel.dbo_enabled = lambda: False


def watch(seen: Callable[[str], None]) -> None:
    """Tell each batch of every target that can be split: `seen` is called with one of `DEEDS`."""
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import get_forward_context
    from vllm.v1.worker.gpu_ubatch_wrapper import UBatchWrapper

    call = UBatchWrapper.__call__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = get_forward_context()
        slices = context.ubatch_slices
        full = context.cudagraph_runtime_mode is CUDAGraphMode.FULL
        known = slices is not None and sum(each.num_tokens for each in slices) in self.cudagraphs
        result = call(self, *args, **kwargs)
        if slices is None:
            seen("whole")
        elif full:
            seen("replayed" if known else "captured")
        else:
            seen("ran")
        return result

    UBatchWrapper.__call__ = called


class NoStream:
    """Takes the place of a CUDA stream: whatever is launched on it has been done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = kwargs.get("device")

    def wait_event(self, event: Any) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Wait for nothing."""


class NoEvent:
    """Takes the place of a CUDA event, which has always happened."""

    def record(self, stream: Any = None) -> None:
        """Record nothing."""

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""


def install_on_cpu(yields: bool = True) -> None:
    """Give this process's CPU runner a target whose micro-batches run in threads of their own.

    Streams and events are doubles; everything else of `UBatchWrapper` and its contexts is vLLM's.
    No graph of micro-batches is captured: the double of graphs records one thread.

    :param yields: whether a micro-batch lets the other one run behind each exchange between ranks,
        as those of backends that overlap do.
    """
    import torch
    from vllm.v1.worker import cpu_model_runner, gpu_ubatch_wrapper, ubatching

    stream = NoStream()
    current: dict[str, Any] = {"stream": stream}
    # Doubles take the place of classes.
    torch.cuda.Stream, torch.Event = NoStream, NoEvent  # type: ignore[misc, assignment, unused-ignore]
    torch.cuda.current_stream = lambda device=None: current["stream"]
    torch.cuda.set_stream = lambda chosen: current.update(stream=chosen)
    torch.accelerator.set_device_index = lambda device: None  # 0.33 calls it in each thread
    ubatching.current_stream = lambda: current["stream"]
    gpu_ubatch_wrapper.create_sm_control_context = lambda parallel: contextlib.nullcontext()
    if yields:
        _yield_behind_exchanges()
    runner = cpu_model_runner.CPUModelRunner
    load = runner.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        if self.parallel_config.use_ubatching:
            self.model = eager_target(self)

    runner.load_model = load_model


def eager_target(runner: Any) -> Any:
    """The runner's model in vLLM's own wrapper, which is told that no batch has a graph."""
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import get_forward_context
    from vllm.v1.worker.gpu_ubatch_wrapper import UBatchWrapper

    class EagerTarget(UBatchWrapper):  # type: ignore[misc, unused-ignore]  # mypy may see no vLLM
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            get_forward_context().cudagraph_runtime_mode = CUDAGraphMode.NONE
            return super().__call__(*args, **kwargs)

    return EagerTarget(runner.model, runner.vllm_config, CUDAGraphMode.NONE, runner.device)


def _yield_behind_exchanges() -> None:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.v1.worker import ubatching

    for name in ("all_gatherv", "reduce_scatterv"):
        stock = getattr(CpuCommunicator, name)

        def exchange(*args: Any, stock: Any = stock, **kwargs: Any) -> Any:
            result = stock(*args, **kwargs)
            ubatching.dbo_yield()
            return result

        setattr(CpuCommunicator, name, exchange)
