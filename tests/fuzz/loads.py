"""What the differential fuzz draws from a seed: the shape of an engine, and loads for it.

Nothing here imports vLLM: the script that starts the engines and the engines themselves draw the
same from the same seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from overlay.proof.oracle import FIRST_TOKEN, continuation, make_rule
from tests.engine.engine_spec import EngineSpec

VOCAB = 192
#: That of the tiny models, which say what comes for any prompt.
RULE = make_rule(VOCAB)
#: The text of each token: what may stand in JSON, then syllables.
TEXTS = (
    *("<pad>", "<s>", "</s>"),
    *map(chr, range(32, 127)),
    *map("".join, product("bdfgklmnprstvz", "aeiouwy")),
)[:VOCAB]
#: The end of a text: a token that the target says now and then, unlike `</s>`.
END = TEXTS.index("ta")
#: How much of a logit the target keeps: as little as a penalty changes.
LOGIT_SCALE = 0.08
#: What opens and closes thoughts.
THINK, SPEAK = "A", "B"
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-z]{2,18}"},
    {"regex": "(ba|do|x[0-9]){1,24}"},
    {"regex": "[A-F][A-F0-9 ]{0,30}"},
    {"choice": ["bado", "zebra", "x"]},
    {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
)
Event = dict[str, Any]
#: Parameters with which a request says what comes by itself, up to its end.
PLAIN = {
    *("max_tokens", "min_tokens", "temperature", "ignore_eos", "stop_token_ids", "stop"),
    *("include_stop_str_in_output", "logprobs", "prompt_logprobs"),
}


def change_target(folder: Path) -> None:
    """Give the tiny target a tokenizer, so that texts can be stopped, forbidden and asked for, and
    logits that penalties and temperatures decide about."""
    for name, changes in (
        ("config.json", {"eos_token_id": END, "logit_scale": LOGIT_SCALE}),
        # Else `</s>` would be a token id that stops every request.
        ("generation_config.json", {"eos_token_id": END}),
    ):
        file = folder / name
        config = {**json.loads(file.read_text(encoding="utf-8")), **changes}
        file.write_text(json.dumps(config), encoding="utf-8")
    special = [
        {"id": number, "content": TEXTS[number], "special": number < FIRST_TOKEN}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number in (*range(FIRST_TOKEN), END)
    ]
    vocabulary = {text: number for number, text in enumerate(TEXTS)}
    unused = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor")
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": TEXTS[0]},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": TEXTS[1],
        "eos_token": TEXTS[END],
        "pad_token": TEXTS[0],
        "unk_token": TEXTS[0],
    }
    for name, content in (
        ("tokenizer.json", tokenizer | dict.fromkeys(unused)),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


@dataclass(frozen=True)
class Shape:
    """One engine.

    :ivar graphs: whether the draft may have graphs: the double's on CPU, the device's on a GPU.
    :ivar sizes: of the graphs, tokens.
    :ivar seqs: requests at a time; :ivar length: of each, at most; :ivar tokens: of a step.
    :ivar blocks: of the KV cache; None for enough.
    :ivar least_k: drafts of a full batch, down to which K falls with the batch size; None for K.
    :ivar short_draft: whether the draft's context is half as long as the target's.
    :ivar few_rows: whether bookkeeping is batched from one request on.
    :ivar untried: whether graphs are used where no test has shown them (graphs of mixed batches).
    :ivar sampled: the share of requests that are sampled.
    """

    draft: str = "eagle3hid"
    k: int = 3
    asynchronous: bool = True
    graphs: bool = False
    mode: str = "FULL_DECODE_ONLY"
    sizes: tuple[int, ...] = (4, 16, 64, 160)
    seqs: int = 33
    block: int = 32
    length: int = 160
    tokens: int = 128
    caching: bool = True
    blocks: int | None = None
    least_k: int | None = None
    short_draft: bool = False
    thinking: bool = False
    few_rows: bool = True
    untried: bool = False
    sampled: float = 0.0
    dtype: str = "bfloat16"

    def piecewise(self, *, gpu: bool) -> bool:
        """Whether models are compiled, in parts of which PIECEWISE graphs are captured."""
        return gpu and self.graphs and "PIECEWISE" in self.mode

    def spec(self, models: Path | str, *, gpu: bool) -> EngineSpec:
        """The engine, without requests."""
        engine: dict[str, Any] = {"skip_tokenizer_init": False, "dtype": self.dtype}
        if self.thinking:
            words = {"reasoning_start_str": THINK, "reasoning_end_str": SPEAK}
            engine["reasoning_config"] = words
        if gpu:
            engine |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30}
        compilation: dict[str, Any] = {
            "mode": 3 if self.piecewise(gpu=gpu) else 0,
            "cudagraph_mode": self.mode,
            "cudagraph_capture_sizes": sorted(set(self.sizes)),
        }
        speculative: dict[str, Any] = {}
        if self.short_draft:
            speculative["max_model_len"] = self.length // 2
        if self.least_k is not None:
            middle = max(self.k - 2, self.least_k, 1)
            steps = [[1, 2, self.k], [3, 9, middle], [10, max(self.seqs, 10), self.least_k]]
            speculative["num_speculative_tokens_per_batch_size"] = steps
        return EngineSpec(
            models=str(models),
            draft=self.draft,
            k=self.k,
            block_size=self.block,
            kv_blocks=self.blocks,
            max_num_seqs=self.seqs,
            max_model_len=self.length,
            max_num_batched_tokens=self.tokens,
            enforce_eager=not self.graphs,
            prefix_caching=self.caching,
            async_scheduling=self.asynchronous,
            compilation=compilation if self.graphs else None,
            engine=engine,
            speculative=speculative,
        )


def shape_of(given: Mapping[str, Any]) -> Shape:
    """Read a shape that was written as JSON.

    :raises TypeError: on an entry that no shape has.
    """
    return Shape(**{**given, "sizes": tuple(given.get("sizes", Shape.sizes))})


def draw_shape(rng: random.Random, given: Mapping[str, Any], *, gpu: bool) -> Shape:
    """Draw a shape.

    :param given: entries that are not drawn.
    """
    graphs = gpu or rng.random() < 0.5
    seqs, length = rng.choice((5, 17, 33, 40, 48)), rng.choice((96, 160, 256))
    # The double takes its time for each pass.
    k = rng.choice((1, 2, 3, 3, 4, 5) if graphs and not gpu else (1, 2, 3, 3, 4, 5, 8, 12))
    block = rng.choice((16, 32)) if graphs else 32
    pressure = rng.choice((None, None, 0.25, 0.4, 0.6))
    each = -(-length // block)
    least = rng.choice((0, 1) if gpu or not graphs else (1,))
    full = (k + 1) * seqs
    drawn = Shape(
        draft=rng.choice(("eagle3", "eagle3hid", "eagle3hid", "eagle1")),
        k=k,
        asynchronous=rng.random() < 0.85,
        graphs=graphs,
        mode=rng.choice(("FULL_DECODE_ONLY",) * 2 + ("FULL", "PIECEWISE", "FULL_AND_PIECEWISE")),
        sizes=rng.choice(
            ((4, 16, 64, 160), (3, 7, 11, 40, 121), (k + 1, 5 * (k + 1), 64), (full,))
        ),
        seqs=seqs,
        block=block,
        length=length,
        tokens=max(rng.choice((48, 64, 128, 512)), seqs + 8, k + 9),
        caching=rng.random() < 0.6,
        blocks=None if pressure is None else max(int(each * seqs * pressure), each + 4),
        least_k=least if k > 2 and rng.random() < 0.15 else None,
        short_draft=rng.random() < 0.15,
        thinking=rng.random() < 0.3,
        few_rows=rng.random() < 0.6,
        untried=rng.random() < 0.3,
        sampled=rng.choice((0.0, 0.2, 0.6)) if gpu else 0.0,
        # A CPU multiplies it three times as fast.
        dtype="bfloat16" if gpu else rng.choice(("bfloat16", "float32")),
    )
    if drawn.sizes == (full,):  # vLLM takes no size beyond the tokens of a step
        drawn = replace(drawn, sizes=(min(full, drawn.tokens // (k + 1) * (k + 1)),))
    return shape_of({**asdict(drawn), **given})


def draw_load(seed: int, shape: Shape, requests: int = 0) -> list[Event]:
    """Draw what happens to an engine: `at` which step one does what, in this order.

    :param requests: how many; 0 for a number that is drawn, too.
    """
    rng = random.Random(seed)
    plain, pace = rng.random() < 0.5, rng.choice((0.02, 0.1, 0.4))
    # Of short ones more start in a step than the next step has tokens for.
    longest = min(rng.choice((3, 70, 70)), shape.length - 20)
    prompts: list[list[int]] = []
    events: list[Event] = []
    step = 0
    for number in range(requests or rng.choice((12, 40, 60, 80))):
        if rng.random() < pace:
            step += rng.choice((1, 1, 2, 3, 6))
        name = f"r{number}"
        prompt = _prompt(rng, shape, prompts, longest)
        parameters = _parameters(rng, shape, continuation(RULE, prompt, 40), plain=plain)
        if "thinking_token_budget" in parameters:
            prompt[-1] = TEXTS.index(THINK)
        event = {"at": step, "do": "add", "id": name, "prompt": prompt}
        events.append({**event, "parameters": parameters})
        if rng.random() < 0.12:
            events.append({"at": step + rng.randint(0, 14), "do": "abort", "id": name})
    for _ in range(rng.choice((0, 0, 1, 2))):
        do = rng.choice(("reset", "reset running", "reload", "metrics"))
        if do == "reload" and shape.graphs and shape.draft == "eagle1":
            do = "metrics"  # on a CPU vLLM packs the head, which both share, to another place
        events.append({"at": rng.randint(2, step + 20), "do": do})
    return sorted(events, key=lambda event: int(event["at"]))


def _prompt(rng: random.Random, shape: Shape, before: list[list[int]], longest: int) -> list[int]:
    """A prompt, which may share its beginning with one before it, or end near the limit."""

    def fresh(least: int, most: int) -> list[int]:
        return [rng.randrange(FIRST_TOKEN, VOCAB) for _ in range(rng.randint(least, most))]

    if before and longest > 3 and rng.random() < 0.35:
        base = rng.choice(before)
        prompt = base[: rng.randint(1, len(base))] + fresh(1, 6)
    else:
        prompt = fresh(2, longest)
    prompt = prompt[: shape.length - 12]
    before.append(prompt)
    if rng.random() < 0.08:
        prompt = (prompt * shape.length)[: shape.length - rng.randint(2, 14)]
    if rng.random() < 0.2:
        # Among the first tokens, which a step or two accept as drafts.
        token = END
        for _ in range(rng.randint(1, 4)):
            token = RULE.successor.index(token)
        prompt[-rng.randint(1, 2)] = token
    return list(prompt)


def _parameters(
    rng: random.Random, shape: Shape, coming: list[int], *, plain: bool
) -> dict[str, Any]:
    """Sampling parameters by vLLM's names.

    :param coming: what the target says where nothing changes it.
    :param plain: whether nothing may change or read the logits.
    """
    tokens = rng.choice((1, 2, 5, 13, 20, 30, 45, 60, 60))
    most = shape.length if rng.random() < 0.08 else tokens
    asked: dict[str, Any] = {
        "max_tokens": most,
        "temperature": 0.0,
        "ignore_eos": rng.random() < 0.5,
    }

    def some(share: float, name: str, value: Any) -> None:
        if rng.random() < share:
            asked[name] = value

    def tokens_of(most: int) -> list[int]:
        return [
            *rng.sample(coming, rng.randint(1, 2)),
            *rng.sample(range(FIRST_TOKEN, VOCAB), most),
        ]

    def words_of(most: int) -> list[str]:
        return [TEXTS[token] for token in tokens_of(most) if token != END] or ["x"]

    some(0.25, "stop_token_ids", tokens_of(4))
    some(0.15, "min_tokens", min(rng.randint(1, 25), most))
    some(0.15, "stop", words_of(2))
    some(0.05, "include_stop_str_in_output", True)
    some(
        0.06, "repetition_detection", {"max_pattern_size": 6, "min_pattern_size": 1, "min_count": 2}
    )
    if plain:
        return asked
    some(0.12, "logprobs", rng.choice((0, 1, 3)))
    some(0.08, "prompt_logprobs", rng.choice((0, 2)))
    some(0.10, "repetition_penalty", rng.choice((1.3, 2.0, 5.0)))
    some(0.08, "presence_penalty", rng.choice((-2.0, 2.0)))
    some(0.08, "frequency_penalty", rng.choice((-2.0, 2.0)))
    some(0.06, "allowed_token_ids", tokens_of(rng.choice((1, 20, 120))))
    some(0.06, "bad_words", words_of(3))
    some(0.12, "grammar", rng.choice(GRAMMARS))
    if "grammar" in asked:
        # Both may allow no token at all, and what is said then depends on the step's other rows.
        asked.pop("allowed_token_ids", None)
    if shape.thinking:
        some(0.4, "thinking_token_budget", rng.choice((0, 1, 3, 7, 12)))
    if rng.random() < shape.sampled:
        asked |= {"temperature": rng.choice((0.2, 0.3, 1.0)), "top_p": rng.choice((1.0, 0.9))}
        some(0.3, "top_k", rng.choice((1, 5, 40)))
        some(0.3, "n", rng.choice((2, 3)))
        some(0.5, "seed", rng.randrange(1 << 30))
    return asked


def asked_otherwise(event: Event) -> dict[str, Any]:
    """The parameters of a request, by what a stock vLLM refuses beside drafts; the answer is equal.

    What it forbids has a bias, and one of sixteen plain ones may say each token that is as likely
    as the likeliest.
    """
    given: dict[str, Any] = event["parameters"]
    if given.keys() <= PLAIN and int(event["id"][1:]) % 16 == 1:
        return {**given, "temperature": 2.0, "min_p": 1.0}
    allowed, words = given.get("allowed_token_ids"), given.get("bad_words")
    # One that is said often has less than the bias.
    often = allowed is not None and "frequency_penalty" in given
    if "grammar" in given or often or (allowed is None) == (words is None) or " " in (words or ()):
        return given
    # `bad_words` forbids a word with a blank before it, too: this tokenizer has no such token.
    bad = {0, *map(TEXTS.index, words)} if words else set(range(VOCAB)).difference(allowed or ())
    asked = {name: given[name] for name in given if name not in ("allowed_token_ids", "bad_words")}
    return {**asked, "logit_bias": dict.fromkeys(bad, -100.0)}


def reduced(load: Sequence[Event], without: Sequence[int]) -> list[Event]:
    """A load without the events of these numbers, and without what belongs to them alone."""
    left = [event for number, event in enumerate(load) if number not in set(without)]
    added = {event["id"] for event in left if event["do"] == "add"}
    return [event for event in left if event.get("id") in added or "id" not in event]


def relied_on(
    load: Sequence[Event],
    shape: Shape,
    *,
    gpu: bool,
    stale_frames: bool,
    endless: bool,
    stale_masks: bool,
    whole_steps: bool,
) -> list[Event]:
    """A load without what a stock vLLM itself does wrong.

    Prompt logprobs are computed behind the drafts, of hidden states that the drafter's own
    PIECEWISE graphs may have overwritten (vllm#53488).  A request that a reset preempts under
    asynchronous scheduling loses a step for each of its placeholders, drafts among them, where only
    one is on its way (0.22 to 0.26); it is not scheduled again, and the load would never end.  Nor
    does a request that comes to the end of its context without its min_tokens (up to 0.28).  The
    tokens that one may say are asked of another in its row (up to 0.30).  A request that a string
    or its grammar ends in a step keeps the tokens behind that (up to 0.31); how many these are
    depends on its drafts, and beside a short draft the gate changes which steps have any.

    :param stale_frames: whether the release drops as many steps as there are placeholders.
    :param endless: whether it asks for min_tokens before it asks for the end of the context.
    :param stale_masks: whether a row that moves leaves the mask of its allowed tokens behind.
    :param whole_steps: whether tokens behind a stop string stay.
    """
    left_out = {"prompt_logprobs"} if shape.piecewise(gpu=gpu) else set()
    left_out |= {"allowed_token_ids"} if stale_masks else set()
    whole = whole_steps and shape.short_draft
    left_out |= {"stop"} if whole else set()
    renamed = {"reset running": "reset"} if shape.asynchronous and stale_frames else {}

    def kept(event: Event) -> Event:
        changed = {**event, "do": renamed.get(event["do"], event["do"])}
        if "parameters" in event:
            asked = event["parameters"]
            room = shape.length - len(event["prompt"])
            short = {"min_tokens"} if endless and asked.get("min_tokens", 0) > room else set()
            endless_answer = {"ignore_eos"} if whole and "grammar" in asked else set()
            names = asked.keys() - left_out - short - endless_answer
            changed["parameters"] = {name: asked[name] for name in asked if name in names}
        return changed

    return [kept(event) for event in load]
