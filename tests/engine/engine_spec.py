"""One run of an engine on the tiny models, as data: what to start, and what to ask of it.

A spec goes to ``run_engine`` as JSON.  Nothing in it is bound to a device or a release.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from overlay.proof.oracle import FIRST_TOKEN
from overlay.proof.oracle import EngineRequest as Request
from overlay.results import ModelRunner

__all__ = ("ASYNCHRONOUS", "QUICKEST", "EngineSpec", "Request", "make_requests")

#: What a CPU without instructions for 16 bits multiplies ten times as fast as bfloat16 (with AVX2):
#: a third of what a run cost. The weights are the same numbers, and what is computed with them is
#: more exact. Graphs and drafter ask nowhere which of the two it is. `qwen3-next`, whose attention
#: wants 16 bits, stays with bfloat16.
QUICKEST = {"dtype": "float32"}


@dataclass(frozen=True)
class EngineSpec:
    """One engine and its requests.

    :ivar models: the folder that ``tiny_models.write_models`` wrote.
    :ivar draft: ``eagle3``, ``eagle3hid``, ``eagle1`` or ``None`` for no speculation.
    :ivar kv_blocks: size of the KV cache in blocks; ``None`` lets vLLM choose.
    :ivar engine: further arguments of ``vllm.LLM``, which win over those made from this spec.
    :ivar speculative: further entries of ``speculative_config``.
    :ivar runner: the model runner; ``None`` for the release's own choice.
    :ivar env: environment variables, set before vLLM is imported.
    :ivar packages: folders of packages that hold the hooks' modules; ``engine_launch`` makes them
        importable in every process of the engine.
    :ivar pre: ``module:function`` names, called without arguments in every process of the engine
        that starts from this script, before vLLM is imported there.
    :ivar post_load: the same, called with the ``LLM`` before the first request; what they return
        (or ``None``) is in the result's ``hooks``, by ``module:function`` without the packages.
    :ivar finish: the same, called after the last request.
    """

    models: str
    draft: str | None = "eagle3"
    k: int = 3
    requests: tuple[Request, ...] = ()
    block_size: int | None = None
    kv_blocks: int | None = None
    max_num_seqs: int = 8
    max_model_len: int = 512
    max_num_batched_tokens: int = 512
    enforce_eager: bool = True
    prefix_caching: bool = False
    async_scheduling: bool | None = None
    tensor_parallel_size: int = 1
    attention_backend: str | None = None
    compilation: Mapping[str, Any] | None = None
    runner: ModelRunner | None = ModelRunner.V1
    engine: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    pre: tuple[str, ...] = ()
    post_load: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineSpec:
        """Read what ``to_json`` wrote; entries may be missing.

        :raises ValueError: on an entry that no spec has, or another model runner.
        """
        given = json.loads(text)
        unknown = given.keys() - {entry.name for entry in fields(cls)}
        if unknown:
            raise ValueError(f"an engine spec has no {', '.join(sorted(unknown))}")
        requests = tuple(
            Request(**{**request, "prompt": tuple(request["prompt"])})
            for request in given.get("requests", ())
        )
        runner = given.get("runner", ModelRunner.V1)
        lists = ("packages", "pre", "post_load", "finish")
        return cls(
            **{
                **given,
                "requests": requests,
                "runner": None if runner is None else ModelRunner(runner),
                **{name: tuple(given.get(name, ())) for name in lists},
            }
        )

    def llm_arguments(self) -> dict[str, Any]:
        """The keyword arguments of ``vllm.LLM``."""
        arguments: dict[str, Any] = {
            "model": f"{self.models}/target",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "seed": 0,
            "disable_log_stats": False,
            "enforce_eager": self.enforce_eager,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "enable_prefix_caching": self.prefix_caching,
            "tensor_parallel_size": self.tensor_parallel_size,
        }
        optional = {
            "block_size": self.block_size,
            "num_gpu_blocks_override": self.kv_blocks,
            "async_scheduling": self.async_scheduling,
            "compilation_config": self.compilation,
            "attention_config": self.attention_backend and {"backend": self.attention_backend},
        }
        arguments |= {name: value for name, value in optional.items() if value is not None}
        if self.draft is not None:
            arguments["speculative_config"] = {
                "method": "eagle" if self.draft == "eagle1" else "eagle3",
                "model": f"{self.models}/{self.draft}",
                "num_speculative_tokens": self.k,
                **self.speculative,
            }
        return arguments | dict(self.engine)


def make_requests(
    count: int,
    *,
    tokens: int = 48,
    lengths: tuple[int, int] = (2, 39),
    vocab: int = 192,
    seed: int = 1,
    wave: int | None = None,
    steps_between: int = 7,
) -> tuple[Request, ...]:
    """Random prompts, all at once or in waves.

    :param lengths: the shortest and the longest prompt.
    :param wave: how many arrive together, ``steps_between`` engine steps apart; ``None`` for all.
    """
    rng = random.Random(seed)
    made = []
    for index in range(count):
        length = rng.randint(*lengths)
        prompt = tuple(rng.randrange(FIRST_TOKEN, vocab) for _ in range(length))
        arrival = 0 if wave is None else index // wave * steps_between
        made.append(Request(prompt, tokens, arrival))
    return tuple(made)


#: An engine that schedules asynchronously, and counts its steady steps.
ASYNCHRONOUS = EngineSpec(
    "",
    "eagle3hid",
    3,
    make_requests(10, tokens=40, wave=3, steps_between=6),
    block_size=32,
    engine=QUICKEST,
    env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    async_scheduling=True,
    pre=("tests.engine.steady_hooks:schedule_asynchronously",),
    post_load=("tests.engine.steady_hooks:watch",),
    finish=(
        "tests.engine.steady_hooks:steps",
        "tests.engine.steady_hooks:bookkeeping",
        "tests.engine.steady_hooks:scheduling",
    ),
)
