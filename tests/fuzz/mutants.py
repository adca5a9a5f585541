"""Bugs in the host features and the draft graphs that the fuzz must notice.

Each is put into modules that are loaded already: whoever holds one of their functions runs the
changed code from then on.  Two bugs are not here, because no load on a CPU has shown them; tests in
``tests/steady_inputs`` do: a copy to the GPU that is left out (one buffer serves as both sides),
and a step that is taken for steady though a row is another request's (a batch that loses a row has
another size, and who joins one brings no drafts).
"""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.support.code_edits import Edit, edited

_SLOTS, _GREEDY = "vllm.v1.core.held_slots", "vllm.v1.sample.greedy_verification"
_ROWS, _KERNELS = "vllm.v1.worker.batched_bookkeeping", "vllm.v1.worker.steady_kernels"
_GRAPHS = "vllm.v1.spec_decode.draft_graphs"

#: By name; an edit names the module in the place of a file.
MUTANTS: dict[str, tuple[Edit, ...]] = {
    "tokens are appended beyond max_tokens": (
        (_SLOTS, "_appending", "request.num_output_tokens + number >= request.max_tokens", "False"),
    ),
    "an end of the text among the drafts is passed over": (
        (_SLOTS, "_appending", "params.eos_token_id in tokens", "False"),
    ),
    "a full block is noted one block late": (
        (
            _SLOTS,
            "_noting",
            "(noted.get(name, 0) + 1) * size <= num_computed_tokens",
            "(noted.get(name, 0) + 2) * size <= num_computed_tokens",
        ),
    ),
    "slots for the drafts to come are not asked for": (
        (_SLOTS, "_allocating", "len(own) * size < needed", "len(own) * size < end"),
    ),
    "the last accepted draft is not counted": (
        (_ROWS, "accepted_tokens", "row[:length]", "row[: max(length - 1, 1)]"),
    ),
    "rejected drafts are not taken off": ((_ROWS, "_correct", "...", "pass"),),
    "a row gets the first draft in the place of each": (
        (
            _ROWS,
            "_places",
            "np.repeat(rows * width, lengths) + number",
            "np.repeat(rows * width, lengths)",
        ),
    ),
    "the last token of a prompt is the one before it": (
        (
            _ROWS,
            "last_tokens",
            "state.get_token_id(place)",
            "state.get_token_id(max(place, 1) - 1)",
        ),
    ),
    "lengths stay what they were": (
        (_KERNELS, "compute_advance", "inputs.num_computed[:num_reqs] += counts", "pass"),
    ),
    "the bonus token is the one before it": (
        (
            _GREEDY,
            "verify_greedily",
            "metadata.bonus_logits_indices",
            "metadata.bonus_logits_indices - 1",
        ),
    ),
    "penalties are not asked about": ((_GREEDY, "is_plain", "asked.no_penalties", "True"),),
    "tokens that must not come yet are not asked about": (
        (_GREEDY, "_is_idle", "not getattr(processor, requests)", "True"),
    ),
    "a graph for fewer requests than there are is replayed": (
        (f"{_GRAPHS}.keys", "DraftKeys.dispatch", "fits[num_reqs]", "fits[max(1, num_reqs - 1)]"),
        (
            f"{_GRAPHS}.keys",
            "DraftKeys.dispatch",
            "num_tokens * key.num_reqs != key.num_tokens * num_reqs",
            "False",
        ),
    ),
    "a graph reads the rejected drafts of a batch before": (
        (
            f"{_GRAPHS}.staging",
            "_FirstRows.copy",
            "(self.rejected, ...)",
            "(self.rejected, self.rejected.clone())",
        ),
    ),
    "the later passes are not replayed": (
        (f"{_GRAPHS}.replay", "Replay.propose", "self._run_later(later, k)", "None"),
    ),
    "the drafts are those of the rows before": (
        (
            f"{_GRAPHS}.replay",
            "_drafts",
            "drafts.clone(memory_format=torch.contiguous_format)",
            "MATCH.roll(1, 0)",
        ),
    ),
}


#: Those of the draft graphs, and the others.
GRAPHS = tuple(name for name, edits in MUTANTS.items() if edits[0][0].startswith(_GRAPHS))
HOSTS = tuple(name for name in MUTANTS if name not in GRAPHS)


def put_in(name: str) -> None:
    """Change the modules of a bug, in this process.

    :raises EditError: if an edit does not fit its module.
    """
    by_module: dict[str, list[tuple[str, str, str]]] = {}
    for module, *edit in MUTANTS[name]:
        by_module.setdefault(module, []).append((edit[0], edit[1], edit[2]))
    for module, edits in by_module.items():
        loaded = importlib.import_module(module)
        changed = ModuleType(module)
        changed.__dict__.update(vars(loaded))
        text = edited(inspect.getsource(loaded), edits, module)
        exec(compile(text, str(loaded.__file__), "exec", dont_inherit=True), vars(changed))
        for scope, _, _ in edits:
            _transplant(loaded, changed, scope)


def _transplant(loaded: Any, changed: Any, scope: str) -> None:
    """Give the function of a scope, itself or a method, the code of its changed twin.

    Functions that it has made already, as those of an engine that runs, get theirs.
    """
    for part in scope.split("."):
        loaded, changed = vars(loaded)[part], vars(changed)[part]
    assert isinstance(loaded, FunctionType)
    codes = dict(_pairs(loaded.__code__, changed.__code__))
    gc.unfreeze()  # vLLM has what it made hidden from the collector
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__ in codes:
            each.__code__ = codes[each.__code__]


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code of a function and of those inside it, with that of their changed twins."""
    yield old, new
    inner = [[each for each in code.co_consts if type(each) is CodeType] for code in (old, new)]
    for one, other in zip(*inner, strict=True):
        yield from _pairs(one, other)
