#!/usr/bin/env python3
"""Let engines serve random loads for many steps, and compare each token and draft with the oracle.

    soak.py --out result.json [--steps 200000] [--seconds 420] [--only REGEX]

Runs inside an environment that holds a patched vLLM. Prompts of all lengths come and go, alone and
in crowds, some are aborted, and in one engine some are preempted, so that decodes and prefills meet
in steps of all sizes. The tiny models say what each answer and each count of accepted drafts must
be. Each engine goes on until all together took ``--steps`` steps, or ``--seconds`` have passed.
Exit 0: no engine ended early, no token and no draft was wrong, what is active verified batches
greedily, and the steps were taken.
``--ranks 2`` wants two GPUs: engines of two tensor-parallel ranks on model runner V2, with graphs
of mixed batches, which have to run on both.  ``--double`` rehearses it on a CPU, without graphs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import math
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2]))

from overlay.proof import engine_compat, oracle
from overlay.results import ModelRunner
from tests.engine.engine_facts import base_environment
from tests.engine.engine_launch import run_session, write_models
from tests.engine.engine_spec import QUICKEST, EngineSpec
from tests.engine.tiny_eagle import read_rule

MEMORY = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 2 << 30}
WIDE = EngineSpec(
    "",
    "eagle3hid",
    3,
    max_num_seqs=256,
    max_model_len=1024,
    max_num_batched_tokens=2048,
    enforce_eager=False,
    runner=ModelRunner.V2,
    engine=MEMORY,
)
#: Each engine by its name; what differs says what it is for.
CELLS = {
    "drafts": WIDE,
    "no-drafts": replace(WIDE, draft=None),
    "preempted": replace(
        WIDE, max_num_seqs=64, kv_blocks=320, block_size=16, prefix_caching=True, k=5
    ),
    "beyond-the-sizes": replace(WIDE, max_num_batched_tokens=8192, prefix_caching=True),
    "chunks": replace(WIDE, max_num_seqs=96, max_num_batched_tokens=512),
    "v1": replace(WIDE, runner=ModelRunner.V1),
}
#: What a step ran in, on model runner V2.
DECODE_GRAPH, MIXED_GRAPH = "a graph of decodes", "a graph of mixed batches"
NO_GRAPH = "no graph"
#: Tokens of the longest answer.
MOST = 100
#: Steps between two looks at the others' counts.
LOOK = 200


class Load:
    """Random requests, so many in flight that every batch size comes, and what was wrong of them.

    :ivar steps: steps of the engine that scheduled something, by what they held.
    """

    def __init__(self, llm: Any, spec: EngineSpec, seed: int) -> None:
        self._engine, self._spec, self._random = llm.llm_engine, spec, random.Random(seed)
        self._rule = read_rule(Path(spec.models))
        #: By request: the prompt with what must follow, the tokens that came, the prompt's length.
        self._texts: dict[str, list[int]] = {}
        self._answers: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}
        self._sent = self._wanted = 0
        self.steps: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.verified = 0
        self.wrong: list[str] = []

    def verify_drafts(self, request: str, known: int, drafted: int, accepted: int) -> None:
        """Compare how many drafts a step accepted with what the oracle says."""
        text = self._texts.get(engine_compat.external_id(request))
        if text is None:  # aborted while the step ran
            return
        self.verified += 1
        expected = oracle.accepted(self._rule, text[known - 2 : known], drafted)
        if accepted != expected:
            self.wrong.append(f"request {request}, {known} tokens: {accepted} for {expected}")

    def step(self, *, more: bool = True) -> None:
        """Send what is to be in flight now, let the engine take a step, and read its answers."""
        drawn = self._random
        if not self._wanted or drawn.random() < 0.01:
            # As often few as many: a step of each size has to come.
            self._wanted = round(2 ** drawn.uniform(0, self._spec.max_num_seqs.bit_length()))
        for _ in range(drawn.choice((1, 1, 1, 2, 8, 64)) if more else 0):
            if len(self._answers) < self._wanted:
                self._send()
        if self._answers and drawn.random() < 0.02:
            request = drawn.choice(list(self._answers))
            self._engine.abort_request([request])
            self._end(request, "aborted")
        for output in self._engine.step():
            if output.request_id in self._answers:
                self._answers[output.request_id] += output.outputs[0].token_ids
                if output.finished:
                    self._end(output.request_id, "answered")

    def drain(self) -> None:
        """Let what is in flight end."""
        while self._answers:
            self.step(more=False)

    def _send(self) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        drawn, name = self._random, str(self._sent)
        longest = self._spec.max_model_len - MOST - self._spec.k - 1
        length = round(2 ** drawn.uniform(1, math.log2(longest)))
        prompt = [drawn.randrange(oracle.FIRST_TOKEN, self._rule.vocab) for _ in range(length)]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=drawn.choice((1, 2, 5, 17, 40, MOST)),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._texts[name] = prompt + oracle.continuation(self._rule, prompt, params.max_tokens)
        self._answers[name] = []
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        self._lengths[name] = length
        self._sent += 1

    def _end(self, name: str, how: str) -> None:
        """Compare the tokens of an answer with the oracle's, of one that was aborted as far."""
        text, length, tokens = (
            self._texts.pop(name),
            self._lengths.pop(name),
            self._answers.pop(name),
        )
        self.ended[how] += 1
        expected = text[length:]
        if tokens != (expected if how == "answered" else expected[: len(tokens)]):
            pairs = zip(tokens, expected, strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            self.wrong.append(
                f"request {name}, {how}: prompt of {length}, the first {same} of {len(tokens)} "
                f"tokens are right of {len(expected)}"
            )


def graph_of(chosen: Any) -> str:
    """Which of the target's graphs model runner V2 has chosen for a step."""
    return MIXED_GRAPH if chosen.uniform_token_count is None else DECODE_GRAPH


def watch_steps(llm: Any, load: Load, spec: EngineSpec) -> None:
    """Count what each step holds, and which graph ran in it.

    On model runner V2 it is the target's, or ``a graph`` of pieces or of the draft alone; on V1
    ``a graph`` of any. Ranks have processes of their own, and count their graphs there.
    """
    import torch

    graph = NO_GRAPH
    upstream_replay = torch.cuda.CUDAGraph.replay

    def replay(self: Any) -> None:
        nonlocal graph
        graph = "a graph" if graph == NO_GRAPH else graph
        upstream_replay(self)

    torch.cuda.CUDAGraph.replay = replay
    if spec.runner is ModelRunner.V2:
        from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager

        upstream_run = ModelCudaGraphManager.run_fullgraph

        def run_fullgraph(self: Any, chosen: Any) -> Any:
            nonlocal graph
            graph = graph_of(chosen)
            return upstream_run(self, chosen)

        ModelCudaGraphManager.run_fullgraph = run_fullgraph
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    upstream = scheduler.schedule
    widest = spec.k + 1 if spec.draft else 1
    kind = ""

    def schedule(*args: Any, **kwargs: Any) -> Any:
        nonlocal kind, graph
        # The step before has been launched by now.
        if kind:
            load.steps[kind if spec.tensor_parallel_size > 1 else f"{kind}, {graph}"] += 1
        output = upstream(*args, **kwargs)
        counts = output.num_scheduled_tokens.values()
        prefills = sum(count > widest for count in counts)
        kind = "decodes" if not prefills else "prefills" if prefills == len(counts) else "mixed"
        kind, graph = kind if counts else "", NO_GRAPH
        return output

    scheduler.schedule = schedule


def count_graphs(worker: Any) -> None:
    """Count the target's graphs in a process that has a rank of several, from now on."""
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager

    upstream_run = ModelCudaGraphManager.run_fullgraph
    worker.overlay_graphs = {DECODE_GRAPH: 0, MIXED_GRAPH: 0}

    def run_fullgraph(self: Any, chosen: Any) -> Any:
        worker.overlay_graphs[graph_of(chosen)] += 1
        return upstream_run(self, chosen)

    ModelCudaGraphManager.run_fullgraph = run_fullgraph


def graphs_of_rank(worker: Any) -> dict[str, Any]:
    """What ``count_graphs`` counted, and what is active in that process."""
    return {"graphs": worker.overlay_graphs, "decode_graph_sizes": effect("decode-graph-sizes")}


def effect(feature: str) -> dict[str, Any]:
    """What a feature says of itself in this process: its state, text, and what it counted."""
    module = sys.modules.get("vllm.v1.overlay_effects")
    return {} if module is None else module.effects().get(feature, {})


def unused(ranks: list[dict[str, Any]]) -> list[str]:
    """What is wrong where greedy verification is active and verified no batch, or a rank ran none
    of the graphs of mixed batches.
    """
    without = [number for number, rank in enumerate(ranks) if not rank["graphs"][MIXED_GRAPH]]
    if without:
        return [f"no graph of a mixed batch ran on the ranks {without}: {ranks}"]
    greedy = effect("greedy-verification")
    if greedy.get("state") != "active" or greedy["counts"].get("batches verified from one argmax"):
        return []
    return [f"greedy verification is active and verified no batch: {greedy}"]


def serve(cell: Path) -> None:
    """Serve one engine's load, and write what came of it after each look at the others."""
    request = json.loads(cell.read_text(encoding="utf-8"))
    spec, name = EngineSpec.from_json(request["spec"]), request["name"]
    several = spec.tensor_parallel_size > 1
    for key, value in base_environment(spec.tensor_parallel_size).items():
        os.environ.setdefault(key, value)
    if several:
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions are sent to the ranks
    os.environ.update(engine_compat.runner_environment(spec.runner) | dict(spec.env))
    import torch
    import vllm

    load: Load | None = None

    def verify(*step: Any) -> None:
        if load is not None:
            load.verify_drafts(*step)

    engine_compat.watch_drafts(verify)
    llm = vllm.LLM(**spec.llm_arguments())
    load = Load(llm, spec, request["seed"])
    watch_steps(llm, load, spec)
    counted = several and not spec.enforce_eager
    if counted:
        llm.collective_rpc(count_graphs)
    config = llm.llm_engine.vllm_config.compilation_config
    told = {
        "vllm": vllm.__version__,
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "mode": str(config.cudagraph_mode),
        "largest_size": config.max_cudagraph_capture_size,
    }
    out = cell.with_suffix(".result")
    while True:
        for _ in range(LOOK):
            load.step()
        others = [each.read_text(encoding="utf-8") for each in cell.parent.glob("*.result")]
        taken = sum(json.loads(each)["taken"] for each in others)
        over = bool(load.wrong) or taken >= request["steps"] or time.time() > request["until"]
        if over and not load.wrong:
            load.drain()
        ranks = llm.collective_rpc(graphs_of_rank) if over and counted else []
        figures = {
            **told,
            "name": name,
            "taken": sum(load.steps.values()),
            "steps": dict(sorted(load.steps.items())),
            "requests": dict(load.ended),
            "verified_drafts": load.verified,
            "wrong": load.wrong[:20] or (unused(ranks) if over else []),
            "ranks": ranks,
            "greedy_verification": effect("greedy-verification"),
            "decode_graph_sizes": effect("decode-graph-sizes"),
            "complete": over,
        }
        half = out.with_suffix(".half")
        half.write_text(json.dumps(figures), encoding="utf-8")
        half.replace(out)
        if over:
            return


def run(
    name: str, spec: EngineSpec, copy: int, args: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Start an engine of its own, and take home what it wrote.

    :param copy: its number among those of the cell, from 0; each has a load of its own.
    """
    name += f"-{copy + 1}" if copy else ""
    cell = folder / f"{name}.json"
    request = {"name": name, "spec": spec.to_json(), "seed": args.seed + copy}
    request |= {"steps": args.steps, "until": time.time() + args.seconds}
    cell.write_text(json.dumps(request), encoding="utf-8")
    log = args.out.resolve().parent / f"soak-{name}.log"
    command = [sys.executable, str(HERE), "--cell", str(cell)]
    with log.open("wb") as stream:
        status = run_session(command, folder, dict(os.environ), stream, args.seconds + 120)
    result = cell.with_suffix(".result")
    figures = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"name": name}
    text = log.read_text(encoding="utf-8", errors="replace")
    failed = status != 0 or not figures.get("complete") or figures["wrong"]
    figures |= {"status": status, "ok": not failed, "spec": dataclasses.asdict(spec)}
    return figures | ({"output": text[-4000:]} if failed else {})


def main() -> int:
    """Run the engines that are asked for, and say what they took and got wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=200_000, help="of all engines together")
    parser.add_argument("--seconds", type=float, default=420, help="from the start, at most")
    parser.add_argument("--only", default="", help=f"regular expression on {', '.join(CELLS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the first engine of each cell")
    parser.add_argument("--copies", type=int, default=1, help="engines of each cell")
    parser.add_argument("--ranks", type=int, default=1, help="of each engine, on model runner V2")
    parser.add_argument("--double", action="store_true", help="on a CPU, without graphs")
    args = parser.parse_args()
    if args.cell:
        serve(args.cell)
        return 0
    if args.out is None:
        parser.error("--out is needed: where the result goes")
    chosen = {name: spec for name, spec in CELLS.items() if re.search(args.only, name)}
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        write_models(sys.executable, Path(folder), environment=dict(os.environ))
        if args.ranks > 1:
            chosen = {
                name: on_ranks(spec, args.ranks)
                for name, spec in chosen.items()
                if spec.runner is ModelRunner.V2
            }
        if args.double:
            chosen = {name: on_cpu(spec) for name, spec in chosen.items()}
        with ThreadPoolExecutor(max(len(chosen) * args.copies, 1)) as pool:
            work = [
                pool.submit(run, name, replace(spec, models=folder), copy, args, Path(folder))
                for name, spec in chosen.items()
                for copy in range(args.copies)
            ]
            cells = [each.result() for each in work]
    steps = sum((Counter(cell.get("steps", {})) for cell in cells), Counter())
    document = {
        "script": "tests/gpu/soak.py",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "steps": dict(sorted(steps.items())),
        "taken": sum(steps.values()),
        "seed": args.seed,
        "copies": args.copies,
        "engines": cells,
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for cell in cells:
        print(cell["name"], cell.get("steps"), cell.get("wrong"), "ok" if cell["ok"] else "FAILED")
        print(cell.get("output", ""))
    print(f"{document['taken']} steps of {args.steps}: {document['steps']}", flush=True)
    return 0 if all(cell["ok"] for cell in cells) and sum(steps.values()) >= args.steps else 1


def on_ranks(spec: EngineSpec, ranks: int) -> EngineSpec:
    """The same load for an engine of several ranks, with what one rank has by default."""
    env = {**spec.env, "OVERLAY_DECODE_GRAPH_SIZES": "mixed"}
    return replace(spec, tensor_parallel_size=ranks, env=env)


def on_cpu(spec: EngineSpec) -> EngineSpec:
    """The same load for an engine without graphs."""
    engine = {**spec.engine, **QUICKEST}
    block = spec.block_size and 32
    spec = replace(spec, block_size=block, kv_blocks=40 if block else None, max_num_seqs=16)
    return replace(spec, enforce_eager=True, runner=None, engine=engine)


if __name__ == "__main__":
    raise SystemExit(main())
