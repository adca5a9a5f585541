"""Hooks for ``run_engine.py``: loads in which a stock vLLM is wrong, and what came of them.

They run on a CPU, where the tests' doubles schedule asynchronously and replay graphs, and on a GPU
(``tests/gpu/mends.py``), where nothing is a double.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

from overlay.proof import engine_compat
from overlay.proof.oracle import FIRST_TOKEN, accepted, continuation
from tests.engine import engine_facts
from tests.engine.tiny_eagle import read_rule

#: Of the engine's requests, and of its draft where that is short.
LENGTH = 96
MOST_STEPS = 400
Added = list[tuple[int, str, list[int], dict[str, Any]]]


def asynchronous() -> None:
    """Before the engine is made, on a CPU: asynchronous scheduling."""
    from tests.engine.steady_hooks import schedule_asynchronously

    schedule_asynchronously()


def serve(llm: Any, added: Added) -> dict[str, Any]:
    """Serve requests, each from its step on: their tokens, drafts and the error that ended it.

    :param added: step, name, prompt and sampling parameters.
    """
    from vllm import SamplingParams

    steps: dict[str, list[list[int]]] = defaultdict(list)
    engine_compat.watch_drafts(
        lambda name, *step: steps[engine_compat.external_id(name)].append(list(step))
    )
    engine, left, answers, error = llm.llm_engine, list(added), {}, None
    try:
        for number in range(MOST_STEPS):
            while left and left[0][0] <= number:
                _, name, prompt, parameters = left.pop(0)
                asked = SamplingParams(ignore_eos=True, detokenize=False, **parameters)
                engine_facts.add_request(llm, name, prompt, asked)
            for output in engine.step():
                if output.finished:
                    answers[output.request_id] = output
            if not left and not engine.has_unfinished_requests():
                break
    except Exception as ended:  # noqa: BLE001 - whatever ends the engine is the outcome
        error = str(ended).partition("\n")[0]
        engine.output_processor.request_states.clear()  # nobody waits for them any more
    return {
        "error": error,
        "tokens": {name: list(each.outputs[0].token_ids) for name, each in answers.items()},
        # What is served later comes to this watch, too.
        "steps": {name: list(each) for name, each in steps.items()},
        "prompts": {
            name: [
                entries and {str(t): round(e.logprob, 4) for t, e in entries.items()}
                for entries in each.prompt_logprobs
            ]
            for name, each in answers.items()
            if each.prompt_logprobs
        },
        "counts": counts(),
    }


def counts() -> dict[str, int]:
    """What the features counted in this process."""
    if importlib.util.find_spec("vllm.v1.overlay_effects") is None:
        return {}
    from vllm.v1.overlay_effects import effects

    each = effects()
    return {name: n for told in each.values() for name, n in told["counts"].items()}


def context_limit(llm: Any) -> dict[str, Any]:
    """A request whose drafts are all rejected, beside one with a penalty, up to the limit."""
    rule = read_rule(Path(llm.llm_engine.model_config.model).parent)
    same = next(
        t for t in range(FIRST_TOKEN, 190) if t not in (rule.successor[t], rule.successor[t + 1])
    )
    plain = {"temperature": 0.0, "max_tokens": LENGTH, "allowed_token_ids": [same]}
    # It takes as many steps for its tokens, so that it is still there when the other one ends.
    penalised = {**plain, "frequency_penalty": 0.1}
    return serve(llm, [(0, "a", [7] * 10, plain), (20, "b", [9] * 4, penalised)])


#: Requests that fit into the short draft's context, by name: prompts and numbers of tokens.
SHORT = {"a": (8, 24), "b": (5, 12), "c": (13, 30)}
SHORT_DRAFT = {"max_model_len": LENGTH // 2}


def long_request(llm: Any) -> dict[str, Any]:
    """Requests without and with one beyond the drafter's context, and one that grows beyond it."""
    from tests.engine.weight_hooks import Warnings

    warnings = Warnings()
    logging.getLogger("vllm.v1.worker.draft_gate").addHandler(warnings)

    def asked(name: str, length: int, tokens: int) -> tuple[int, str, list[int], dict[str, Any]]:
        return 0, name, prompt_of(length), {"temperature": 0.0, "max_tokens": tokens}

    short = [asked(name, *each) for name, each in SHORT.items()]
    alone = serve(llm, short)
    beside = [asked("long", LENGTH - 20, 18), *short, asked("grows", 30, 40)]
    return {"alone": alone, "beside": serve(llm, beside), "warnings": warnings.lines}


def eager_draft(llm: Any) -> dict[str, Any]:
    """On model runner V2: how many graphs target and draft have, and what some requests get."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    graphs = {
        name: sum(
            len(each)
            for manager in vars(owner).values()
            for each in getattr(manager, "_capture_descs", {}).values()
        )
        for name, owner in {"target": runner, "draft": runner.speculator}.items()
    }
    asked = {"temperature": 0.0, "max_tokens": 24}
    added: Added = [
        (number, f"{number}", [FIRST_TOKEN + 7 * number + at for at in range(5 + number)], asked)
        for number in range(8)
    ]
    return {"graphs": graphs, **serve(llm, added)}


def least_tokens(llm: Any) -> dict[str, Any]:
    """Requests that could stop before they have min_tokens, and behind: without drafts and with."""
    rule = read_rule(Path(llm.llm_engine.model_config.model).parent)
    added: Added = []
    for number, least in enumerate((2, 3, 4, 5, 6, 9, 12, 13)):
        prompt = [FIRST_TOKEN + 5 * number + place for place in range(6 + number)]
        coming = continuation(rule, prompt, 15)
        asked = {"temperature": 0.0, "max_tokens": 24, "min_tokens": least}
        for stop in sorted({1, 2, least - 1, least, least + 1}):
            name = f"{least} {stop}"
            added.append((number, name, prompt, {**asked, "stop_token_ids": [coming[stop]]}))
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    inner = scheduler._update_after_schedule

    def without_drafts(output: Any) -> None:
        inner(output)
        for request in scheduler.requests.values():
            request.spec_token_ids = []

    scheduler._update_after_schedule = without_drafts
    try:
        right = serve(llm, added)
    finally:
        scheduler._update_after_schedule = inner
    return {"right": right, "beside": serve(llm, added)}


def graphs() -> None:
    """Before the engine is made, on a CPU: draft graphs of a double, of mixed batches, too."""
    asynchronous()
    from tests.draft_graphs import cpu_engine

    cpu_engine.prepare()
    if importlib.util.find_spec("vllm.v1.spec_decode.draft_graphs"):
        from tests.draft_graphs.recorded_backend import RecordedBackend

        RecordedBackend(mixed=True).install()


def long_request_in_graphs(llm: Any) -> dict[str, Any]:
    """The same, and how often graphs were replayed."""
    from tests.draft_graphs import cpu_engine

    cpu_engine.capture_model(llm)
    outcome = long_request(llm)
    worker = llm.llm_engine.model_executor.driver_worker.worker
    replayed = counts() and engine_compat.draft_graph_facts(worker)["replayed"]
    return {**outcome, "replays": sum(replayed.values())} if replayed else outcome


def overwritten_states(llm: Any) -> dict[str, Any]:
    """Log probabilities of prompts, without and with a drafter that writes over hidden states.

    On a GPU it does so by itself where its graphs share their memory with the target's.
    """
    prompt = [FIRST_TOKEN + number for number in range(9)]
    asked = {"temperature": 0.0, "max_tokens": 6, "prompt_logprobs": 1}
    right = serve(llm, [(0, "p", prompt, asked)])
    overwrite_states(llm.llm_engine.model_executor.driver_worker.worker.model_runner)
    return {"right": right, "overwritten": serve(llm, [(0, "q", prompt, asked)])}


def overwrite_states(runner: Any) -> None:
    """Let the drafter of a model runner write over the target's hidden states."""
    forward, propose = runner._model_forward, runner.drafter.propose
    states: list[Any] = []

    def noted(*args: Any, **named: Any) -> Any:
        output = forward(*args, **named)
        states[:] = [output[0] if isinstance(output, tuple) else output]
        return output

    def overwriting(*args: Any, **named: Any) -> Any:
        drafts = propose(*args, **named)
        states[0].fill_(1.0)
        return drafts

    runner._model_forward, runner.drafter.propose = noted, overwriting


def piecewise_prompts(llm: Any) -> dict[str, Any]:
    """Log probabilities of prompts of several lengths, as the engine gives them by itself."""
    asked = {"temperature": 0.0, "max_tokens": 4, "prompt_logprobs": 1}
    added: Added = [
        (
            row,
            f"p{row}",
            [FIRST_TOKEN + (7 * row + number) % 180 for number in range(5 + row)],
            asked,
        )
        for row in range(12)
    ]
    return serve(llm, added)


#: Requests that vLLM refuses, with drafts or without: length of the prompt, parameters.
BAD: dict[str, tuple[int, dict[str, Any]]] = {
    "min_p above 1": (9, {"min_p": 2.0}),
    "min_p below 0": (9, {"min_p": -0.1}),
    "a bias of no token": (9, {"logit_bias": {10**6: 1.0}}),
    "more min_tokens than max_tokens": (9, {"max_tokens": 4, "min_tokens": 5}),
    "more log probabilities than allowed": (9, {"prompt_logprobs": 1000}),
    "no token allowed": (9, {"allowed_token_ids": []}),
    "a token that is none allowed": (9, {"allowed_token_ids": [10**6]}),
    "a prompt that is too long": (LENGTH + 1, {}),
    "no prompt": (0, {}),
}


def bad_input(llm: Any) -> dict[str, Any]:
    """What requests are refused for while others are served, and these."""
    asked = {"temperature": 0.0, "max_tokens": 20}
    return refusing(
        llm, [(0, f"{row}", [FIRST_TOKEN + row] * (4 + row), asked) for row in range(4)]
    )


def refusing(llm: Any, company: Added) -> dict[str, Any]:
    """Serve requests; between two steps those of ``BAD`` are asked for."""
    from vllm import SamplingParams

    refusals: dict[str, str] = {}

    def refuse() -> None:
        for name, (length, given) in BAD.items():
            try:
                asked = SamplingParams(detokenize=False, **given)
                engine_facts.add_request(llm, name, [FIRST_TOKEN] * length, asked)
            except Exception as error:  # noqa: BLE001 - the words are the outcome
                refusals[name] = f"{type(error).__name__}: {error}"

    engine, steps = llm.llm_engine, itertools.count()
    step = engine.step

    def stepping() -> Any:
        if next(steps) == 2:
            refuse()
        return step()

    engine.step = stepping
    try:
        return {**serve(llm, company), "refusals": refusals}
    finally:
        engine.step = step


#: Greedy requests, each with a bias of its own; what is biased so much is all that comes.
BIASED = {"one": {FIRST_TOKEN + 3: 100.0}, "other": {FIRST_TOKEN + 60: 100.0}}


def prepare() -> None:
    """Before the engine is made, on a CPU: asynchronous scheduling, and temperatures as asked."""
    asynchronous()
    sample_as_a_gpu()


def sample_as_a_gpu() -> None:
    """On a CPU, sample beside drafts as vLLM's kernels for GPUs do.

    vLLM's expansion to the drafts' rows writes into a copy there where values are floats, so that
    what is sampled beside drafts has a temperature of memory that nobody wrote.  And a draft of -1,
    which stands for no draft, is rejected on a GPU; a CPU reads a chance of another row for it.
    """
    from vllm.v1.sample import rejection_sampler

    upstream = rejection_sampler.rejection_sample

    def expand(x: Any, counts: Any, size: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        values = x.where(x != replace_from, replace_to)
        return values.repeat_interleave(counts.diff(prepend=counts.new_zeros(1)))

    def sample(drafts: Any, *rest: Any, **named: Any) -> Any:
        _numbers, _most, _ends, _chances, logits, *_ = rest
        if hasattr(logits, "argmin"):  # else all are greedy, and no draft of -1 is the likeliest
            drafts = drafts.where(drafts >= 0, logits.argmin(dim=-1).to(drafts.dtype))
        return upstream(drafts, *rest, **named)

    rejection_sampler.expand_batch_to_tokens = expand
    rejection_sampler.rejection_sample = sample


def refused_parameters(llm: Any) -> dict[str, Any]:
    """Greedy requests with logit_bias, and sampled ones whose min_p leaves the likeliest token."""
    prompt, greedy = [FIRST_TOKEN] * 9, {"temperature": 0.0, "max_tokens": 12}
    biased: Added = [
        (0, name, prompt, {**greedy, "logit_bias": bias}) for name, bias in BIASED.items()
    ]
    least = {**greedy, "temperature": 2.0, "min_p": 1.0}
    return {
        "plain": serve(llm, [(0, "plain", prompt, greedy)]),
        "biased": serve(llm, biased),
        "least": serve(llm, [(0, "least", prompt, least)]),
    }


#: Requests by name: lengths of prompts and answers within the drafter's context and beyond it, and
#: up to the end of the context.
LENGTHS = {"a": (4, 12), "b": (7, 12), "long": (LENGTH - 20, 8), "grows": (45, 12)}
LENGTHS["full"] = (LENGTH - 4, 4)


def second_runner(llm: Any) -> dict[str, Any]:
    """On model runner V2: what is refused beside requests within each limit, at it and beyond.

    What each must get is in ``right``: its tokens, and of its steps how many drafts are accepted.
    """
    rule = read_rule(Path(llm.llm_engine.model_config.model).parent)
    greedy = {"temperature": 0.0, "max_tokens": 6}
    least = {**greedy, "temperature": 2.0, "min_p": 1.0}
    added: Added = [(0, "least", prompt_of(9), least)]
    for name, bias in BIASED.items():
        added.append((0, name, prompt_of(9), {**greedy, "logit_bias": bias}))
    for name, (length, tokens) in LENGTHS.items():
        added.append((1, name, prompt_of(length), {**greedy, "max_tokens": tokens}))
    # Drafts that are all rejected up to the limit, and later such with a penalty: V1's fault.
    held = {**greedy, "max_tokens": LENGTH, "allowed_token_ids": [FIRST_TOKEN]}
    added.insert(0, (0, "held", prompt_of(LENGTH - 12), held))
    added.append((4, "penalised", prompt_of(LENGTH - 12), {**held, "frequency_penalty": 0.1}))
    outcome = refusing(llm, added)
    texts = {
        name: prompt + continuation(rule, prompt, LENGTH)
        for _, name, prompt, _ in added
        if name in LENGTHS
    }
    steps = {
        name: [[known, k, accepted(rule, texts[name][:known], k)] for known, k, _ in each]
        for name, each in outcome["steps"].items()
        if name in texts
    }
    right = {name: texts[name][length:][:n] for name, (length, n) in LENGTHS.items()}
    right["least"] = continuation(rule, prompt_of(9), 6)
    right |= {name: [*bias] * 6 for name, bias in BIASED.items()}
    right |= {name: [FIRST_TOKEN] * 12 for name in ("held", "penalised")}
    return {**outcome, "right": {"tokens": right, "steps": steps}}


def prompt_of(length: int) -> list[int]:
    """A prompt whose tokens depend on its length."""
    return [FIRST_TOKEN + (7 * length + number) % 180 for number in range(length)]
