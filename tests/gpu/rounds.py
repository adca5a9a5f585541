"""Serve the same requests in rounds, with something happening to the engine before each of them.

``python -m tests.gpu.rounds PLAN.json --out RESULT.json`` is one engine; `launch` starts it. A plan
has ``spec``, an `EngineSpec` whose worker has `WeightEvents`; ``draft``, the folder of the draft's
checkpoint; ``rounds``, what happens before each; ``double``, whether the graph double makes the
graphs, on CPU. The result has a dictionary a round; one that failed ends the run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engine.engine_launch import run_session
from tests.engine.engine_spec import QUICKEST, EngineSpec

if TYPE_CHECKING:
    from tests.draft_graphs.forked_modules import ForkedModules

EXTENSION = "tests.draft_graphs.weight_events.WeightEvents"
#: Name -> level, and whether weights and KV cache wake one after the other.
SLEEPS = {
    "sleep-1": (1, False),
    "sleep-1-tags": (1, True),
    "sleep-2": (2, False),
    "sleep-2-tags": (2, True),
}
#: Nothing happens.
BEFORE = "before"


def with_events(spec: EngineSpec, *, double: bool) -> EngineSpec:
    """The engine with a worker that knows the events; on CPU a smaller one."""
    engine = {**spec.engine, "worker_extension_cls": EXTENSION}
    if not double:
        return replace(spec, engine=engine)
    # Few sizes of each kind, and what a CPU multiplies fastest: each event captures again.
    sizes = [size * (spec.k + 1) for size in (1, 2, 4, 8, 16)]
    compilation = {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": sizes,
    }
    engine = {**QUICKEST, **engine}
    engine = {key: value for key, value in engine.items() if "memory" not in key}
    engine.pop("enable_sleep_mode", None)
    small: dict[str, Any] = {"block_size": 16, "kv_blocks": 64, "max_model_len": 128}
    small["max_num_batched_tokens"] = 128
    return replace(spec, engine=engine, compilation=compilation, **small)


def launch(
    plan: dict[str, Any],
    log: Path,
    seconds: float,
    env: dict[str, str],
    python: Path | str = sys.executable,
    forks: ForkedModules | None = None,
) -> dict[str, Any]:
    """Run a plan in a process of its own; its result, or what it said last under ``failed``.

    :param seconds: until it is killed; :param env: more variables; :param python: has vLLM.
    :param forks: runs the plan in a fork instead, and these three are its own.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rounds-") as scratch:
        given, out = Path(scratch, "plan.json"), Path(scratch, "out.json")
        given.write_text(json.dumps(plan), encoding="utf-8")
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
        command = ["tests.gpu.rounds", str(given), "--out", str(out)]
        status: int | None
        if forks is not None:
            done = forks.run(*command)
            status = done.returncode
            log.write_text(done.stdout + done.stderr, encoding="utf-8")
        else:
            environment = {**os.environ, **env, "PYTHONPATH": path}
            with log.open("wb") as stream:
                alone = [str(python), "-m", *command]
                status = run_session(alone, Path(scratch), environment, stream, seconds)
        said = log.read_text(encoding="utf-8", errors="replace")
        result: dict[str, Any] = {"rounds": []}
        if out.is_file():
            result |= json.loads(out.read_text(encoding="utf-8"))
        else:
            result["failed"] = f"status {status}: {said[-1500:]}"
    lines = [line[-500:] for line in said.splitlines() if "Draft graphs" in line]
    return {**result, "log": lines, "wall_s": round(time.monotonic() - begun, 1)}


def prepare_double() -> None:
    """Let the graph double make the graphs, and let layers keep their weights as on a GPU."""
    import torch
    from vllm.model_executor.layers import utils

    from tests.draft_graphs import cpu_engine
    from tests.draft_graphs.recorded_backend import RecordedBackend

    cpu_engine.prepare()
    backend = RecordedBackend(mixed=True)
    if (Path(sys.modules["vllm"].__file__ or "").parent / "v1/overlay_effects.py").is_file():
        backend.install()

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = plain


class Engine:
    """One engine that serves its requests again and again."""

    def __init__(self, spec: EngineSpec, draft: str, *, double: bool) -> None:
        import vllm

        from overlay.proof import engine_compat, oracle
        from tests.engine import engine_facts
        from tests.engine.tiny_eagle import read_rule

        self.spec, self.draft = spec, draft
        self.rule = read_rule(Path(spec.models))
        self.steps: dict[str, list[Any]] = defaultdict(list)
        engine_compat.watch_drafts(
            lambda name, *step: self.steps[engine_compat.external_id(name)].append(
                oracle.OracleStep(*step)
            )
        )
        arguments = engine_facts.with_draft_attention(spec.llm_arguments())
        self.llm = vllm.LLM(**arguments)
        if double:
            from tests.draft_graphs import cpu_engine

            cpu_engine.capture_model(self.llm)

    def event(self, name: str) -> object:
        """Let an event happen on all ranks; what they say of it."""
        if name == BEFORE:
            return None
        if name not in SLEEPS:
            return self.llm.collective_rpc("weight_event", args=(name, self.draft))
        level, tags = SLEEPS[name]
        self.llm.sleep(level=level)
        self.llm.wake_up(tags=["weights"] if tags else None)
        if level == 2:  # nobody else loads them again
            self.llm.collective_rpc("reload_weights")
            self.llm.collective_rpc("weight_event", args=("load_weights", self.draft))
        if tags:
            self.llm.wake_up(tags=["kv_cache"])
        return None

    def round(self, name: str) -> dict[str, Any]:
        """One event and one service of all requests."""
        from overlay.proof import oracle
        from tests.engine import run_engine

        note = self.event(name)
        self.steps.clear()
        outputs, _ = run_engine.serve(self.llm, self.spec.requests, self.spec.models)
        judged, wanted = [], []
        for index, request in enumerate(self.spec.requests):
            steps = self.steps[str(index)]
            judged.append(run_engine.judge(request, outputs[str(index)], steps, self.rule))
            prompt = list(request.prompt)
            text = prompt + oracle.continuation(self.rule, prompt, request.tokens)
            for step in steps:
                right = oracle.accepted(self.rule, text[: step.known], step.drafted)
                wanted.append(oracle.OracleStep(step.known, step.drafted, right))
        seen = [step for each in self.steps.values() for step in each]
        effects = self.llm.collective_rpc("draft_effects")
        return {
            "round": name,
            "note": note,
            "tokens_ok": all(each["tokens_ok"] for each in judged),
            "accepted": list(oracle.count_steps(seen, self.spec.k).per_position),
            "expected": list(oracle.count_steps(wanted, self.spec.k).per_position),
            "cached": sum(output.num_cached_tokens or 0 for output in outputs.values()),
            "states": [each.get("state") for each in effects],
            "replays": [replays(each) for each in effects],
        }


def replays(effects: dict[str, Any]) -> dict[str, int]:
    """How often each role was replayed so far on a rank."""
    counts: dict[str, int] = effects.get("counts", {})
    return {name: count for name, count in counts.items() if name.startswith("replays of")}


def why_wrong(result: dict[str, Any], rounds: Sequence[str], *, graphs: bool) -> list[str]:
    """What is wrong with a plan's result; graphs: whether each round must replay some."""
    if result.get("failed"):
        return [result["failed"]]
    why: list[str] = []
    before: list[int] = []
    for each in result["rounds"]:
        name = each["round"]
        if each.get("error"):
            why.append(f"{name}: {each['error']}")
            continue
        if not each["tokens_ok"]:
            why.append(f"{name}: other tokens than the oracle's")
        if each["accepted"] != each["expected"] or not sum(each["accepted"]):
            why.append(f"{name}: accepted {each['accepted']}, the oracle {each['expected']}")
        now = [sum(rank.values()) for rank in each["replays"]]
        more = [count - first for count, first in zip(now, before or [0] * len(now), strict=True)]
        if not more or any(graphs != (count > 0) for count in more):
            why.append(f"{name}: {more} replays, by rank")
        before = now
    missing = list(rounds)[len(result["rounds"]) :]
    return [*why, *(["not run: " + ", ".join(missing)] if missing else [])]


def main() -> int:
    """Run one plan; 0 unless it could not start."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    plan = json.loads(arguments.plan.read_text(encoding="utf-8"))
    spec = EngineSpec.from_json(json.dumps(plan["spec"]))
    from tests.engine import run_engine

    run_engine.prepare(spec)
    if spec.tensor_parallel_size > 1:
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if plan["double"]:
        os.environ.update({"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
        os.environ["OVERLAY_DRAFT_GRAPHS_UNTRIED"] = "on"  # FlashAttention 3 has mixed graphs
        prepare_double()
    import torch
    import vllm

    engine = Engine(spec, plan["draft"], double=plan["double"])
    found: list[dict[str, Any]] = []
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    about = {"vllm": vllm.__version__, "torch": torch.__version__, "device": device}
    for name in plan["rounds"]:
        try:
            found.append(engine.round(name))
        except Exception as error:  # noqa: BLE001 - whatever an engine dies of is the result
            found.append({"round": name, "error": f"{type(error).__name__}: {error}"[:600]})
        arguments.out.write_text(json.dumps({**about, "rounds": found}), encoding="utf-8")
        if "error" in found[-1]:
            break
    sys.stdout.flush()
    os._exit(0)  # an engine that died may hang in its shutdown


if __name__ == "__main__":
    raise SystemExit(main())
