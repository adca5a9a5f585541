"""What the processes of a data-parallel engine tell: each event a line of JSON in one file.

``data_parallel.py`` installs this in every process that its engine starts, before vLLM is loaded
there. Kinds of events, each with the data-parallel ``rank`` that it is about but ``step``:

- ``loaded``: the draft model is; ``ranks``: how many ranks this one knows of;
- ``captured``: ``keys`` draft graphs, ``withdrawn`` or not;
- ``replay`` of a graph: ``role``, ``size``;
- ``asked``: a pass of the drafter asked the other ranks for their token counts;
- ``dummy``: a dummy batch; ``replays`` in it; ``wrote`` the layers of the draft whose KV cache it
  changed, of the first ones that a rank ran, null if it was not looked at;
- ``step``: a verification of drafts; ``id``, ``known``, ``drafted``, ``accepted``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

EVENTS_VARIABLE = "TEST_DATA_PARALLEL_EVENTS"
#: Dummy batches of a rank around which the KV cache is compared.
COMPARED = 40

#: Of this process.
_counted: Counter[str] = Counter()


def tell(kind: str, **what: Any) -> None:
    """Append one event; whole lines of several processes do not mix."""
    line = json.dumps({"kind": kind, **what}) + "\n"
    descriptor = os.open(os.environ[EVENTS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def rank_of(config: Any) -> int:
    """The data-parallel rank, which a rank that is alone keeps as its index."""
    return int(config.parallel_config.data_parallel_index)


def install() -> None:
    """Watch this process."""
    from overlay.proof import engine_compat

    engine_compat.watch_drafts(
        lambda request_id, known, drafted, accepted: tell(
            "step",
            id=engine_compat.external_id(request_id),
            known=known,
            drafted=drafted,
            accepted=accepted,
        )
    )
    _watch_drafter()
    _watch_dummies()


def _watch_drafter() -> None:
    from vllm.v1.spec_decode import llm_base_proposer
    from vllm.v1.spec_decode.draft_graphs.draft_graphs import DraftGraphs
    from vllm.v1.spec_decode.draft_graphs.replay import Replay

    proposer = llm_base_proposer.SpecDecodeBaseProposer
    load, ask = proposer.load_model, llm_base_proposer.coordinate_batch_across_dp
    capture, replay = DraftGraphs.capture, Replay.run
    rank = 0

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal rank
        load(self, *args, **kwargs)
        rank = rank_of(self.vllm_config)
        tell("loaded", rank=rank, ranks=self.vllm_config.parallel_config.data_parallel_size)

    def coordinate(*args: Any, **kwargs: Any) -> Any:
        tell("asked", rank=rank)
        return ask(*args, **kwargs)

    def captured(self: Any, runner: Any) -> None:
        capture(self, runner)
        keys = self._proposer.cudagraph_dispatcher.draft_keys
        tell("captured", rank=rank, keys=len(keys), withdrawn=self.withdrawn)

    def replayed(self: Any, key: Any) -> None:
        _counted["replays"] += 1
        tell("replay", rank=rank, role=key.role, size=key.num_reqs)
        replay(self, key)

    proposer.load_model = load_model
    llm_base_proposer.coordinate_batch_across_dp = coordinate
    DraftGraphs.capture = captured
    Replay.run = replayed


def _watch_dummies() -> None:
    from vllm.v1.worker.gpu_worker import Worker

    stock = Worker.execute_dummy_batch

    def execute_dummy_batch(self: Any) -> None:
        _counted["dummies"] += 1
        caches = draft_caches(self.model_runner) if _counted["dummies"] <= COMPARED else {}
        before = {name: cache.clone() for name, cache in caches.items()}
        replays = _counted["replays"]
        stock(self)
        wrote = [name for name, cache in caches.items() if not same_bytes(cache, before[name])]
        tell(
            "dummy",
            rank=rank_of(self.vllm_config),
            replays=_counted["replays"] - replays,
            wrote=wrote if caches else None,
        )

    Worker.execute_dummy_batch = execute_dummy_batch


def draft_caches(runner: Any) -> dict[str, Any]:
    """The KV cache of each layer of the draft; some releases keep it in a list."""
    context = runner.compilation_config.static_forward_context
    found = {}
    for name in runner.drafter._draft_attn_layer_names:
        cache = context[name].kv_cache
        found[name] = cache[0] if isinstance(cache, (list, tuple)) else cache
    return found


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two tensors are the same, NaNs included."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return bool(torch.equal(a.view(integers), b.view(integers)))
