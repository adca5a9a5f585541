"""Which model runner a release of vLLM chooses by itself.

A drafter on model runner V2 has graphs of its own and runs none of the code that ``draft-graphs``
patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True)
class Runner:
    """What decides between V1 and V2 in a range of releases.

    :ivar v2: who gets V2 unless told otherwise; :ivar v1: what takes V1 all the same.
    """

    first: str
    last: str
    v2: str
    v1: str


_SOME = (
    "hybrid models, ngram and suffix drafts, parallel drafting, EAGLE3 with pipeline parallelism"
)

_NONE = "no model"

_EVERY = "every model"

RUNNERS = (
    Runner("0.20.0", "0.21.0", _NONE, "every model, unless V2 is asked for"),
    Runner("0.22.0", "0.22.1", "dense Qwen3", f"every other model; {_SOME}"),
    Runner("0.23.0", "0.23.0", "dense Llama, Mistral and Qwen3", f"every other model; {_SOME}"),
    Runner(
        "0.24.0",
        "0.24.0",
        "dense Llama, Mistral and Qwen3, some mixtures of experts (DeepSeek-V2, Qwen2, Granite)",
        f"every other model; {_SOME}",
    ),
    Runner(
        "0.25.0",
        "0.28.0",
        "dense models, and a growing list of mixtures of experts",
        f"other mixtures of experts (most large MTP models); {_SOME}",
    ),
    Runner(
        "0.29.0",
        "0.31.0",
        _EVERY,
        "parallel drafting, suffix and custom drafts, elastic expert parallelism, stock "
        "torch.compile, and (to 0.30.0) a list of architectures on ROCm",
    ),
    Runner(
        "0.32.0",
        "0.33.0",
        _EVERY,
        "parallel drafting, suffix and custom drafts, drafts with another vocabulary, dual batch "
        "overlap, pipeline parallelism with the external launcher",
    ),
)


def runner(release: Version | None) -> Runner | None:
    """The rule of a release, ``None`` where nobody looked at it."""
    if release is None:
        return None
    return next(
        (one for one in RUNNERS if Version(one.first) <= release <= Version(one.last)), None
    )


def advice(release: Version | None, environment: Mapping[str, str]) -> str:
    """One or two sentences: which runner, and what that means for a drafter."""
    asked = environment.get(_VARIABLE)
    if asked == "1":
        return (
            f"V2, by {_VARIABLE}=1 (V1 where V2 cannot do it): a drafter on V2 does not use "
            "draft-graphs; V2 has draft graphs of its own"
        )
    if asked == "0":
        return f"V1, by {_VARIABLE}=0: a drafter (EAGLE, EAGLE3, MTP) uses draft-graphs"
    rule = runner(release)
    if rule is None:
        return (
            f"not known for {release or 'this vLLM'}; its log says which it uses. A drafter on V2 "
            f"does not use draft-graphs; {_VARIABLE}=0 asks for V1"
        )
    return (
        f"V2 for {rule.v2}; V1 for {rule.v1}. A drafter on V2 does not use draft-graphs; "
        f"{_VARIABLE}=0 asks for V1"
    )
