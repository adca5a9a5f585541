"""Hooks of ``run_engine.py`` by which one of several ranks runs something else than the others."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

#: The folder of patches that only one rank gets, for ``patches_of_one_ray_rank``.
PATCHES_VARIABLE = "TEST_PATCHES_OF_ONE_RANK"
SWITCH = "OVERLAY_DRAFT_GRAPHS"


def switch_of_one_process() -> None:
    """Give the second worker of the multiprocess executor another switch (needs spawn)."""
    if multiprocessing.current_process().name == "VllmWorker-1":
        os.environ[SWITCH] = "off"


def one_address() -> None:
    """Have vLLM take the address that Ray gives this machine, wherever it has several or none."""
    import ray

    os.environ["VLLM_HOST_IP"] = ray.util.get_node_ip_address()


def one_stream() -> None:
    """Let the workers of vLLM's older Ray executor do each step on one CUDA stream.

    Each thread of vLLM gets a stream of its own when ``current_stream`` is first called in it.  In
    the thread of Ray's compiled graph that is in the middle of the first step, when the logits are
    gathered (0.26.0, by reading): what follows does not wait for what the stream before still
    does.  On a busy GPU two of five requests got wrong tokens so.
    """
    from vllm.v1.executor import ray_executor

    stock: Any = ray_executor.RayWorkerWrapper

    class OneStream(stock):  # type: ignore[misc] # mypy sees no vLLM
        def execute_model_ray(self, given: Any) -> Any:
            from vllm.utils.torch_utils import current_stream

            self.setup_device_if_necessary()
            current_stream()
            return super().execute_model_ray(given)

    ray_executor.RayWorkerWrapper = OneStream


def patches_of_one_ray_rank() -> None:
    """Give the second worker of vLLM's Ray executor further patches, as its node might have."""
    one_address()
    from vllm.v1.executor import ray_executor_v2

    held: list[dict[str, str]] = []
    executor: Any = ray_executor_v2.RayExecutorV2
    stock_environment = executor._build_runtime_env
    stock_name = ray_executor_v2.build_actor_name

    def build_runtime_env(self: Any) -> Any:
        made = stock_environment(self)
        held.append(made["env_vars"])
        return made

    def build_actor_name(instance: str, rank: int, *sizes: int) -> str:
        # Called for one rank after the other, just before the environment is handed to Ray.
        if rank == 1:
            held[-1]["OVERLAY_PATCHES"] = os.environ[PATCHES_VARIABLE]
        name: str = stock_name(instance, rank, *sizes)
        return name

    executor._build_runtime_env = build_runtime_env
    ray_executor_v2.build_actor_name = build_actor_name
    _tell_every_error()


def switch_of_one_ray_rank() -> None:
    """Give the second worker of vLLM's older Ray executor another switch."""
    one_address()
    from vllm.v1.executor import ray_executor

    executor: Any = ray_executor.RayDistributedExecutor
    stock = executor._get_env_vars_to_be_updated

    def environments(self: Any) -> Any:
        made = stock(self)
        made[1][SWITCH] = "off"
        return made

    executor._get_env_vars_to_be_updated = environments
    _tell_every_error()


def _tell_every_error() -> None:
    """Print what each of several Ray tasks raised; Ray itself raises the first one only."""
    import ray

    stock = ray.get

    def get(refs: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return stock(refs, *arguments, **named)
        except ray.exceptions.RayTaskError:
            for number, ref in enumerate(refs if isinstance(refs, list) else [refs]):
                try:
                    stock(ref, timeout=60)
                except ray.exceptions.RayError as error:
                    print(f"TASK-{number} RAISED {error}", flush=True)
            raise

    ray.get = get
