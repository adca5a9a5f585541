"""Two Ray nodes on this machine, and vLLM's own Ray workers on them, up to their process group.

``python ray_cluster.py PLAN.json``, with the keys ``model``; ``nodes`` (for each node, variables of
its own); and ``groups``, made one after the other: by a name, two nodes and the variables that the
driver alone has meanwhile.  Prints ``RESULT`` and what each worker of each said or raised.  vLLM's
platform for CPUs has no Ray executor, so what the executor does is done here: make the actors, hand
them the driver's variables that vLLM copies, have each initialise its worker (which loads the
plugins) and its device (which makes the groups).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def start_nodes(nodes: list[dict[str, str]]) -> Any:
    """A cluster with a node for each, each with a resource by which it is chosen."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for number, variables in enumerate(nodes):
        cluster.add_node(
            num_cpus=1,
            resources={f"node{number}": 1},
            env_vars=variables,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
        )
    return cluster


def describe(worker: Any) -> dict[str, Any]:
    """What the worker's process runs, by its record; called there."""
    from overlay import _processes

    (own,) = [record for record in _processes.read_all() if record.pid == os.getpid()]
    return {
        "digest": own.digest,
        "rank": own.rank,
        "role": own.role,
        "summary": own.summary,
        "modules": {module.module: module.state for module in own.modules},
        "mode": os.environ.get("OVERLAY_DRAFT_GRAPHS"),
    }


def run(model: str, nodes: list[int]) -> list[dict[str, Any]]:
    """Start workers on nodes and make their groups; one entry a rank."""
    import ray
    from vllm.engine.arg_utils import EngineArgs
    from vllm.ray.ray_env import get_env_vars_to_copy
    from vllm.utils.network_utils import get_distributed_init_method, get_open_port
    from vllm.v1.executor.ray_utils import RayWorkerWrapper

    from overlay._processes.live import family

    world = len(nodes)
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        tensor_parallel_size=world,
        enforce_eager=True,
    ).create_engine_config()
    variables = {name: os.environ[name] for name in get_env_vars_to_copy() if name in os.environ}
    method = get_distributed_init_method("127.0.0.1", get_open_port())
    arguments = [
        {
            "vllm_config": config,
            "local_rank": rank,
            "rank": rank,
            "distributed_init_method": method,
            "is_driver_worker": rank == 0,
        }
        for rank in range(world)
    ]
    actors = [
        ray.remote(num_cpus=1, resources={f"node{node}": 1})(RayWorkerWrapper).remote(rpc_rank=rank)
        for rank, node in enumerate(nodes)
    ]
    ray.get([a.update_environment_variables.remote([variables] * world) for a in actors])
    ray.get([actor.init_worker.remote(arguments) for actor in actors])
    made = [actor.init_device.remote() for actor in actors]
    workers: list[dict[str, Any]] = []
    for rank, (actor, task) in enumerate(zip(actors, made, strict=True)):
        try:
            ray.get(task, timeout=300)
            said = ray.get(actor.execute_method.remote(describe))
            workers.append({"rank": rank, "error": None, **said})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
            workers.append({"rank": rank, "error": f"{type(error).__name__}: {error}"})
    # What a server in this process would show: Ray's workers are not its children.
    shown = sorted(each.record.rank for each in family(os.getpid()) if each.record.rank is not None)
    for actor in actors:
        ray.kill(actor)
    return [{**worker, "shown": shown} for worker in workers]


def main() -> None:
    """Read the plan, run it, print the result."""
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    began = time.monotonic()
    import ray

    cluster = start_nodes(plan["nodes"])
    try:
        ray.init(address=cluster.address, log_to_driver=True)
        result = {}
        for name, (nodes, driver) in plan["groups"].items():
            os.environ.update(driver)
            result[name] = run(plan["model"], nodes)
            for variable in driver:
                del os.environ[variable]
    finally:
        ray.shutdown()
        cluster.shutdown()
    seconds = round(time.monotonic() - began, 1)
    print("RESULT " + json.dumps({"seconds": seconds, "groups": result}), flush=True)


if __name__ == "__main__":
    main()
