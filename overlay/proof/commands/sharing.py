"""Whether the engines of ``overlay bench`` start side by side on the GPU, or one after the other.

Side by side each engine starts once, and all measure in turn; a start costs more than what is
measured of an engine.  For that the GPU must surely hold all of them at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

from overlay.errors import UsageError
from overlay.proof.commands.budget import Part, Sharing
from overlay.proof.commands.question import Question
from overlay.proof.serving_runs import requests_at
from overlay.proof.shape_memory import MOST_SERVED, engine_bytes, kv_cache_bytes

#: The share of the free memory that may be taken.
_SHARE = 0.95
#: Tokens of a prompt of ``step_time``.
_STEP_PROMPT = 128
_QUERY = ("--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits")
#: How a user tells vLLM the size of the KV cache, as a keyword argument. A number of blocks does
#: not do: vLLM measures the memory all the same.
_KV_CACHE = "kv_cache_memory_bytes"


def sharing(question: Question, free: int | None) -> Sharing:
    """How the engines share a GPU.

    :param free: bytes of the GPU that are free; ``None``: unknown.
    :raises UsageError: if the user wants side by side what cannot start so.
    """
    wanted = question.together
    if wanted is False:
        return Sharing(side_by_side=False, why="--one-by-one")
    if wanted and question.model is not None and not _sizes_its_cache(question):
        raise UsageError(
            "--side-by-side with --model: expected --kv-cache-memory-bytes behind --, found none; "
            "engines that start at the same moment cannot measure how much memory is left for it"
        )
    if wanted:
        return Sharing(side_by_side=True, why="--side-by-side")
    why_not = ""
    if question.model is not None:
        why_not = "what --model takes of the GPU is not known; see --side-by-side"
    elif question.arguments or question.engine != "{}":
        why_not = "with engine arguments of your own; see --side-by-side"
    elif free is None:
        why_not = "nvidia-smi did not say how much memory the GPU has free"
    if why_not or free is None:
        return Sharing(side_by_side=False, why=why_not)
    number = len(question.engines)
    needed = number * largest(question)
    sizes = f"{number} engines take up to {_gb(needed)} of the {_gb(free)} that the GPU has"
    return Sharing(side_by_side=needed <= _SHARE * free, why=f"{sizes} free")


def _sizes_its_cache(question: Question) -> bool:
    words = (word.partition("=")[0].lstrip("-") for word in question.arguments)
    given = {word.replace("-", "_") for word in words}
    return _KV_CACHE in given or _KV_CACHE in json.loads(question.engine)


def cache_of(question: Question, part: Part) -> int:
    """Bytes of the KV cache with which an engine of a shape measures a part."""
    if part is Part.STEPS:
        return kv_cache_bytes(question.shape, max(question.batches), _STEP_PROMPT + question.tokens)
    # At a fixed rate as many requests may be served at a time as are sent at all.
    at_rate = min(requests_at(question.rate or 0.0), MOST_SERVED)
    requests = max(*question.concurrency, at_rate)
    return kv_cache_bytes(question.shape, requests, question.prompt + question.answer)


def largest(question: Question) -> int:
    """Bytes of the GPU that an engine of a shape takes in that part where it takes most."""
    caches = (cache_of(question, part) for part in question.schedule.parts)
    return engine_bytes(question.shape, max(caches))


def free_memory(
    environment: Mapping[str, str] = os.environ, program: str = "nvidia-smi"
) -> int | None:
    """Bytes of the GPU that vLLM would take that are free; ``None`` where that is not known.

    CUDA and the program may number GPUs in different orders: where no UUID names one, it is the
    smallest answer of all GPUs that counts.
    """
    try:
        said = subprocess.run(
            (program, *_QUERY),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return read_free(said, None if visible is None else visible.split(",")[0].strip())


def read_free(said: str, first: str | None) -> int | None:
    """The free bytes, from what the program said.

    :param first: the first GPU that vLLM may see, by index or UUID; ``None``: it may see all.
    """
    rows = [[each.strip() for each in line.split(",")] for line in said.splitlines() if line]
    if first == "" or not rows or any(len(row) != 3 for row in rows):
        return None
    named = [row for row in rows if first is not None and _is_named(row, first)]
    numbers = [row[2] for row in named or rows]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    return min(map(int, numbers)) * 1024 * 1024


def _is_named(row: Sequence[str], first: str) -> bool:
    return first.startswith("GPU-") and row[1].startswith(first)


def _gb(number: float) -> str:
    return f"{number / 1e9:.0f} GB"
