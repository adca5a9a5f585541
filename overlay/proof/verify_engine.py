"""Serve the prompts of ``overlay verify`` with one engine; runs in the environment of some vLLM.

``python -m overlay.proof.verify_engine SPEC.json RESULT.json`` waits for a line on standard input,
so that whoever started it can first see to it that it ends with them.  The spec is
:class:`VerifySpec` as JSON.  The result is what ``verification.EngineRun.read`` reads, or
``{"problem": KIND, "text": ...}`` where the engine could not serve.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from overlay.proof import engine_compat, oracle
from overlay.proof.engine_compat import GraphMode
from overlay.proof.engine_pool import write_result
from overlay.proof.oracle import EngineRequest
from overlay.proof.rounding import partings
from overlay.results import ModelRunner

NOT_PATCHED = "not patched"
NOT_STOCK = "not stock"
OTHER_RUNNER = "another model runner"
NO_DRAFTER = "no speculative decoding"
NOT_SERVED = "not served"
RAISED = "raised"

_ACTIVE = "active"
#: Tokens at a place whose log probabilities are asked for; vLLM gives no more unless it is told to.
_LIKELIEST = 20


@dataclass(frozen=True)
class VerifySpec:
    """What one engine is started with, and what it serves.

    :ivar arguments: command-line arguments of vLLM's engine.
    :ivar requests: with token ids, or none.
    :ivar prompts: texts, for the engine's own tokenizer, where there are no requests.
    :ivar tokens: how many to generate for each text.
    :ivar mode: what it is compared as; ``None``: nothing is served, only the runner is told.
    :ivar beside: the answers of an engine, to each request, and of one that is compared with it:
        where these part, and where this engine's part from the first, it says what it thinks.
    :ivar features: of each that may be there, by id: modules that it adds, and whether it mends.
    """

    arguments: tuple[str, ...]
    requests: tuple[EngineRequest, ...] = ()
    prompts: tuple[str, ...] = ()
    tokens: int = 64
    mode: GraphMode | None = None
    beside: tuple[Sequence[Sequence[int]], ...] = ()
    features: Mapping[str, tuple[Sequence[str], bool]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> VerifySpec:
        """Read what ``to_json`` wrote."""
        data = json.loads(text)
        requests = tuple(
            EngineRequest(**{**request, "prompt": tuple(request["prompt"])})
            for request in data["requests"]
        )
        arguments, prompts = tuple(data["arguments"]), tuple(data["prompts"])
        mode = None if data["mode"] is None else GraphMode(data["mode"])
        beside = tuple(data["beside"])
        tokens, features = int(data["tokens"]), dict(data["features"])
        return cls(arguments, requests, prompts, tokens, mode, beside, features)


class CannotServe(Exception):
    """The engine is not one that can be verified.

    :ivar kind: one of the constants of this module.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


def engine_arguments(arguments: tuple[str, ...]) -> Any:
    """vLLM's ``EngineArgs`` of command-line arguments, read by vLLM's own parser.

    :raises CannotServe: if the parser refuses them, or they ask for several engines.
    """
    from vllm.engine.arg_utils import EngineArgs

    parser = EngineArgs.add_cli_args(parser_class()(prog="vLLM"))
    try:
        namespace = parser.parse_args(list(arguments))
    except SystemExit as ended:
        raise CannotServe(
            NOT_SERVED, "vLLM refuses the engine arguments; it says why above"
        ) from ended
    options = EngineArgs.from_cli_args(namespace)
    if getattr(options, "data_parallel_size", 1) > 1:
        raise CannotServe(
            NOT_SERVED,
            f"expected one engine, found --data-parallel-size {options.data_parallel_size}: verify "
            "compares one engine's requests; leave it out",
        )
    if not options.speculative_config:
        raise CannotServe(NO_DRAFTER, "the engine arguments name no draft")
    # Without it nothing counts what was accepted.
    options.disable_log_stats = False
    return options


def parser_class() -> Any:
    """vLLM's parser of command lines.

    :raises CannotServe: if this release has it where it is not known.
    """
    # It has moved between releases.
    for place in ("vllm.utils.argparse_utils", "vllm.utils"):
        with_it = importlib.util.find_spec(place)
        if with_it is not None:
            module = importlib.import_module(place)
            if hasattr(module, "FlexibleArgumentParser"):
                return module.FlexibleArgumentParser
    raise CannotServe(NOT_SERVED, "this vLLM has no FlexibleArgumentParser where it is known")


def require_code(mode: GraphMode | None) -> None:
    """See to it that this process's vLLM has the code of a mode, on disk or in memory.

    :raises CannotServe: if it has not, or is patched where it must be stock.
    """
    import vllm
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    here = f"vLLM {vllm.__version__} in {Path(vllm.__file__).parent}"
    patched = importlib.util.find_spec(engine_compat.EFFECTS) is not None
    if mode is GraphMode.STOCK and patched:
        raise CannotServe(
            NOT_STOCK, f"expected the release's own files, found {here}, which has the overlay's"
        )
    if mode is GraphMode.OVERLAY and not patched:
        raise CannotServe(
            NOT_PATCHED,
            f"expected a vLLM with features of the overlay, found {here} without any, on disk and "
            "in memory",
        )
    graphs = mode is GraphMode.OFF or (mode is not None and mode.has_graphs)
    if graphs and importlib.util.find_spec(engine_compat.DRAFT_GRAPHS_PACKAGE) is None:
        raise CannotServe(
            NOT_PATCHED,
            f"expected a vLLM with the feature draft-graphs, found {here} without it, on disk and "
            "in memory",
        )


def runner_of(spec: VerifySpec) -> str | None:
    """The model runner that vLLM chooses, by its configuration; nothing is loaded.

    ``None`` where this release says nothing of it.
    """
    require_code(None)
    config = engine_arguments(spec.arguments).create_engine_config()
    uses_v2 = getattr(config, "use_v2_model_runner", None)
    if uses_v2 is None:
        return None
    return "v2" if uses_v2 else "v1"


def tokenized(engine: Any, spec: VerifySpec) -> tuple[EngineRequest, ...]:
    """The requests of a spec; texts by the engine's own tokenizer."""
    if spec.requests:
        return spec.requests
    tokenizer = engine.get_tokenizer()
    return tuple(
        EngineRequest(tuple(tokenizer.encode(text)), spec.tokens, arrival=3 * (number // 4))
        for number, text in enumerate(spec.prompts)
    )


def serve(
    llm: Any,
    requests: tuple[EngineRequest, ...],
    options_of: Callable[[EngineRequest], dict[str, Any]] = lambda _: {},
) -> tuple[dict[str, Any], int]:
    """Add each request at its step and step the engine until all are done.

    :param options_of: further arguments with which vLLM's engine is given a request.
    :returns: the finished outputs by request id, and the number of engine steps.
    """
    waiting = sorted(enumerate(requests), key=lambda pair: pair[1].arrival)
    outputs: dict[str, Any] = {}
    step = 0
    while waiting or llm.llm_engine.has_unfinished_requests():
        while waiting and waiting[0][1].arrival <= step:
            index, request = waiting.pop(0)
            parameters = _sampling(
                temperature=request.temperature,
                max_tokens=request.tokens,
                prompt_logprobs=request.prompt_logprobs,
                ignore_eos=True,
            )
            prompt = {"prompt_token_ids": list(request.prompt)}
            options = options_of(request)
            llm.llm_engine.add_request(str(index), prompt, parameters, **options)
        for output in llm.llm_engine.step():
            if output.finished:
                outputs[engine_compat.external_id(output.request_id)] = output
        step += 1
    return outputs, step


def _sampling(**options: Any) -> Any:
    """Sampling parameters."""
    from vllm import SamplingParams

    # No seed of a request's own: on CPU vLLM cannot rewind its generator.
    return SamplingParams(detokenize=False, **options)


def run(spec: VerifySpec) -> dict[str, Any]:
    """Start the engine, serve the requests, tell what was served and what the graphs did.

    :raises CannotServe: if it is not an engine that can be verified.
    """
    began = time.monotonic()
    require_code(spec.mode)
    import torch
    import vllm
    from vllm.v1.engine.llm_engine import LLMEngine

    steps: dict[str, list[oracle.OracleStep]] = defaultdict(list)
    engine_compat.watch_drafts(
        lambda request_id, *step: steps[engine_compat.external_id(request_id)].append(
            oracle.OracleStep(*step)
        )
    )
    engine = LLMEngine.from_engine_args(engine_arguments(spec.arguments))
    before, reported = _facts(engine), _features(engine)
    if spec.mode not in (GraphMode.STOCK, GraphMode.OVERLAY):
        _require_v1(before)
    requests = tokenized(engine, spec)
    started = time.monotonic()
    outputs, _ = serve(SimpleNamespace(llm_engine=engine), requests)
    served = time.monotonic()
    after = _facts(engine)
    speculative = engine.vllm_config.speculative_config
    result = {
        "vllm": vllm.__version__,
        "root": str(Path(vllm.__file__).parent.parent),
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU",
        "k": speculative.num_speculative_tokens,
        "one_pass": speculative.num_speculative_tokens == 1
        or bool(getattr(speculative, "parallel_drafting", False)),
        "served": [
            _answer(request, outputs[str(number)], steps[str(number)])
            for number, request in enumerate(requests)
        ],
        "ranks": [_since(*pair) for pair in zip(before, after, strict=True)],
        "runner": after[0]["runner"],
        "features": with_silent(merged(reported, _features(engine)), spec.features),
        "opinions": [],
        "start_s": round(started - began, 1),
        "serve_s": round(served - started, 1),
    }
    if spec.beside:
        answers = [each["tokens"] for each in result["served"]]
        result["opinions"] = opinions(engine, requests, [*spec.beside, answers])
    engine.engine_core.shutdown()
    return result


def _answer(request: EngineRequest, output: Any, steps: list[oracle.OracleStep]) -> dict[str, Any]:
    """What a request got."""
    return {
        "prompt": len(request.prompt),
        "tokens": list(output.outputs[0].token_ids),
        "steps": [[step.known, step.drafted, step.accepted] for step in steps],
    }


def opinions(
    engine: Any, requests: Sequence[EngineRequest], answers: Sequence[Sequence[Sequence[int]]]
) -> list[list[float | None]]:
    """What an engine thinks of both tokens at each place where further answers leave the first.

    :param answers: of several engines, to each request.
    :returns: the log probabilities of both; ``None`` for a token that is not among the likeliest.
    """
    first, *further = (
        [oracle.Answer(0, tuple(tokens), ()) for tokens in engine_answers]
        for engine_answers in answers
    )
    allowed = engine.vllm_config.model_config.max_logprobs
    most = _LIKELIEST if allowed < 0 else min(_LIKELIEST, max(allowed, 1))
    places = [place for each in further for place in partings(first, each)]
    for number, place in enumerate(places):
        before = first[place.request].tokens[: place.position]
        prompt = {"prompt_token_ids": [*requests[place.request].prompt, *before]}
        parameters = _sampling(temperature=0.0, max_tokens=1, logprobs=most)
        engine.add_request(f"opinion{number}", prompt, parameters)
    likeliest: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                name = engine_compat.external_id(output.request_id)
                likeliest[name] = output.outputs[0].logprobs[0]
    return [
        [
            None if entry is None else round(float(entry.logprob), 5)
            for entry in map(likeliest[f"opinion{number}"].get, (place.expected, place.actual))
        ]
        for number, place in enumerate(places)
    ]


def merged(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What each feature reports, of several processes, with what was counted in between.

    One that is active in any of them is active; of each count the largest is taken.
    """
    features: dict[str, dict[str, Any]] = {}
    for earlier, later in zip(before, after, strict=True):
        for name, report in later.items():
            own = features.setdefault(name, {"state": None, "text": "", "counts": {}})
            if report["state"] is not None and own["state"] != _ACTIVE:
                own |= {"state": report["state"], "text": report["text"]}
            counted = earlier.get(name, {"counts": {}})["counts"]
            for text, number in report["counts"].items():
                more = number - counted.get(text, 0)
                if more > own["counts"].get(text, 0):
                    own["counts"][text] = more
    return features


def with_silent(
    features: Mapping[str, dict[str, Any]], at_hand: Mapping[str, tuple[Sequence[str], bool]]
) -> dict[str, dict[str, Any]]:
    """The reports with those of features that are in this vLLM and say nothing.

    :param at_hand: as ``VerifySpec`` has them.
    """
    silent: dict[str, dict[str, Any]] = {
        name: {"state": None, "text": "", "counts": {}}
        for name, (modules, _) in at_hand.items()
        if any(_is_there(module) for module in modules)
    }
    everything = {**silent, **features}
    return {
        name: {**report, "mends": name in at_hand and at_hand[name][1]}
        for name, report in sorted(everything.items())
    }


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # nor is the package that it would be in


def _facts(engine: Any) -> list[dict[str, Any]]:
    """``draft_graph_facts`` of every rank."""
    ranks: list[dict[str, Any]] = engine.collective_rpc(engine_compat.draft_graph_facts)
    return sorted(ranks, key=lambda rank: int(rank["rank"]))


def _features(engine: Any) -> list[dict[str, Any]]:
    """What all features report, in this process, which schedules, and on every rank."""
    return [engine_compat.reports(), *engine.collective_rpc(engine_compat.reports_of)]


def _require_v1(ranks: Sequence[dict[str, Any]]) -> None:
    """See to it that all ranks have the model runner that draft graphs are for.

    :raises CannotServe: if one has another.
    """
    for rank in ranks:
        runner = None if rank["runner"] is None else ModelRunner(rank["runner"])
        if runner is not ModelRunner.V1:
            name = "another one" if runner is None else runner.name
            raise CannotServe(
                OTHER_RUNNER,
                f"expected model runner V1, which the draft graphs are for, found {name}: set "
                "VLLM_USE_V2_MODEL_RUNNER=0, also where you serve, or compare the overlay with "
                "stock by --mode overlay",
            )


def _since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The facts of a rank with what was counted in between."""
    counts = dict(after)
    for name in ("replayed", "left"):
        counted = {key: n - before[name].get(key, 0) for key, n in after[name].items()}
        counts[name] = {key: count for key, count in counted.items() if count}
    return counts


def main() -> None:
    """Wait to be told to go on, run the spec, write the result."""
    spec_file, out = map(Path, sys.argv[1:3])
    if not sys.stdin.readline():
        sys.exit("whoever started this engine is gone")
    # The engine core stays in this process, where its scheduler can be watched.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    spec = VerifySpec.from_json(spec_file.read_text(encoding="utf-8"))
    try:
        result = run(spec) if spec.mode is not None else {"runner": runner_of(spec)}
    except CannotServe as problem:
        result = {"problem": problem.kind, "text": str(problem)}
    except Exception as error:  # noqa: BLE001 - whatever vLLM raises is told to who asked
        traceback.print_exc()
        result = {"problem": RAISED, "text": f"{type(error).__name__}: {error}"}
    write_result(out, result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an engine that failed may wait for its workers at the interpreter's end


if __name__ == "__main__":
    main()
