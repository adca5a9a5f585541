# SPDX-License-Identifier: Apache-2.0
"""Stops ranks that would not draft alike, before one of them waits for another.

All ranks of a tensor-parallel group capture draft graphs together, or none does, and data-parallel
ranks in lockstep make the same draft passes: a rank whose switches, patches or vLLM differ would
leave the others in their first collective. So each tells the others what it runs, once its draft
model is loaded, through the store over which they met: no collective, since a rank without the
patches enters none. The overlay's plugin compares more, and earlier (docs/auto-apply.md); this is
for ranks whose patches are on disk.

A rank without the patches goes on, to vLLM's own agreement of its first dummy batch, and waits
there. It ends when the others do: their end of the connection is closed, or its timeout is over.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .attention import UNTRIED_VARIABLE
from .policy import CHECK_VARIABLE, MODE_VARIABLE, Decision, Mode

#: Seconds to wait for the other ranks, whose weights may lie on slower disks: as long as NCCL waits
#: by default for a rank in a collective, of which vLLM's next step has several.
PATIENCE = 600.0
#: Seconds between two looks at the store. Python handles signals in between, so that a rank that
#: waits ends as soon as vLLM tells it to.
INTERVAL = 0.1
#: Where ranks tell what they run, in the store.
_KEY = "vllm-overlay/draft-graphs/{round}/{rank}"
#: How many draft models a rank has loaded; all ranks load equally many.
_ROUNDS = "vllm-overlay/draft-graphs/rounds/{rank}"
#: What a rank's facts decide. Data-parallel ranks of which one gets no graphs for a fact, such as
#: its device, all draft as upstream (`ranks.all_ranks_want`); tensor-parallel ones must be alike.
_DECIDED = "drafts"
#: vLLM's modules that the patches of this feature edit.
_EDITED = (
    "vllm.v1.cudagraph_dispatcher",
    "vllm.v1.spec_decode.llm_base_proposer",
    "vllm.v1.worker.gpu_model_runner",
)

#: What a rank runs: the name of each setting and its value.
Settings = Mapping[str, str]


class RanksDiffer(RuntimeError):
    """Ranks of one engine do not draft alike; vLLM must not start."""


def settings(mode: Mode, decision: Decision, *, check: bool, untried: bool) -> dict[str, str]:
    """What must be equal on all ranks, and how this one drafts.

    mode, check, untried: the values of the feature's switches.
    decision: what this rank's policy has decided once its draft model was loaded.
    """
    from vllm.version import __version__

    return {
        MODE_VARIABLE: mode,
        CHECK_VARIABLE: "on" if check else "off",
        UNTRIED_VARIABLE: "on" if untried else "off",
        "vLLM": str(__version__),
        "patches": _digest(),
        _DECIDED: "in graphs" if decision.any else f"as upstream: {'; '.join(decision.refusals)}",
    }


def require_equal_settings(mine: Settings, *, data_parallel: bool) -> None:
    """Tell the other ranks what this one runs, and stop unless all of them run it.

    mine: as `settings` returns it.
    data_parallel: whether the data-parallel ranks met over the same store, and compare, too.

    Raises RanksDiffer, on every rank that waits for it, where ranks differ or say nothing within
    `PATIENCE`. Every rank has to call this once for each draft model that it loads; one rank alone
    returns at once.
    """
    groups = _groups(data_parallel)
    peers = sorted(rank for group in groups for rank in group)
    if len(peers) == 1:
        return
    import torch.distributed
    from vllm.distributed.parallel_state import get_tp_group

    kind = "rank" if data_parallel else "tensor-parallel rank"
    store = torch.distributed.distributed_c10d._get_default_store()
    own = int(get_tp_group().ranks[get_tp_group().rank_in_group])
    number = int(store.add(_ROUNDS.format(rank=own), 1)) - 1
    row = {"host": socket.gethostname(), "settings": dict(mine)}
    store.set(_KEY.format(round=number, rank=own), json.dumps(row))
    rows, silent = _read(store, number, peers)
    by_rank = {rank: row["settings"] for rank, row in rows.items()}
    hosts = ", ".join(f"rank {rank} on {row['host']}" for rank, row in sorted(rows.items()))
    if silent:
        raise RanksDiffer(
            f"Draft graphs: {kind} {', '.join(map(str, silent))} did not say within "
            f"{PATIENCE:.0f} s how it drafts; expected the settings of this rank on all ranks: "
            f"{_equal_line([mine])}. It has no patches of vllm-overlay (not applied there, or "
            "OVERLAY=off), or has died, or still loads its weights: its log says which. Install "
            "the same patched vLLM on its node, or revert the patches on all nodes, and start "
            f"again. These ranks have answered: {hosts}. What was found of the others: "
            + "; ".join(f"rank {rank}: {why}" for rank, why in silent.items())
        )
    if _differ(by_rank, groups):
        raise RanksDiffer(
            f"Draft graphs: {kind}s differ, and would wait for each other while they "
            "capture; expected equal settings, found:\n"
            + "\n".join(differences(by_rank))
            + f"\nEqual on all of them: {_equal_line(list(by_rank.values()))}.\n({hosts}). Make "
            "the switches and the patched vLLM equal on every node, and start "
            "again. Ray copies variables to other nodes only as docs/many-gpus.md says."
        )


def _groups(data_parallel: bool) -> list[list[int]]:
    """The global ranks of each tensor-parallel group that compares; this rank's own is in it.

    vLLM numbers the ranks of an engine alike in each data-parallel rank.
    """
    from vllm.distributed.parallel_state import get_dp_group, get_tp_group

    group = get_tp_group()
    own = int(group.ranks[group.rank_in_group])
    firsts = map(int, get_dp_group().ranks) if data_parallel else [own]
    return [[int(rank) - own + first for rank in group.ranks] for first in firsts]


def _differ(by_rank: Mapping[int, Settings], groups: Sequence[Sequence[int]]) -> bool:
    """Whether ranks differ in a way that stops them: anywhere, or within one group."""
    given: dict[int, Settings] = {
        rank: {name: value for name, value in each.items() if name != _DECIDED}
        for rank, each in by_rank.items()
    }
    within = [{rank: by_rank[rank] for rank in group if rank in by_rank} for group in groups]
    return bool(differences(given)) or any(differences(each) for each in within)


def _equal_line(each_rank: Sequence[Settings]) -> str:
    """The settings that all ranks have in common, in one line."""
    first = each_rank[0]
    equal = [name for name in first if all(each.get(name) == first[name] for each in each_rank)]
    return ", ".join(f"{name} {first[name]}" for name in equal) or "nothing"


def differences(by_rank: Mapping[int, Settings]) -> list[str]:
    """A table of the settings that are not equal on all ranks: a head and a line for each rank.

    Empty where all are equal. A rank that does not have a setting shows a dash.
    """
    names = sorted({name for each in by_rank.values() for name in each})
    unequal = [name for name in names if len({each.get(name) for each in by_rank.values()}) > 1]
    if not unequal:
        return []
    head = ("rank", *unequal)
    rows = [
        (str(rank), *(each.get(name, "-") for name in unequal))
        for rank, each in sorted(by_rank.items())
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return ["  " + _aligned(row, widths) for row in (head, *rows)]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join(cells).rstrip()


def _read(
    store: Any, number: int, peers: Sequence[int]
) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """What each rank says; and why not, for each rank that says nothing within `PATIENCE`."""
    rows: dict[int, dict[str, Any]] = {}
    silent: dict[int, str] = {}
    deadline = time.monotonic() + PATIENCE
    for rank in peers:
        key = _KEY.format(round=number, rank=rank)
        try:
            while not store.check([key]):
                if time.monotonic() >= deadline:
                    silent[rank] = "it has said nothing"
                    break
                time.sleep(INTERVAL)
            else:
                rows[rank] = json.loads(store.get(key))
        # Torch raises errors of several classes, all of them this one, where the store is gone.
        except RuntimeError as error:
            silent[rank] = str(error)
    return rows, silent


def _digest() -> str:
    """The first digits of a hash over this package's modules and vLLM's that the patches edit.

    Their text as it was imported. This package's are all imported together, so that each rank has
    the same ones; of vLLM's those that no patched vLLM has imported by now count as absent.
    """
    digest = hashlib.sha256()
    prefix = f"{__package__}."
    own = sorted(name for name in sys.modules if name.startswith(prefix))
    for name in [*own, *_EDITED]:
        loader: Any = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
        text = loader.get_source(name) if hasattr(loader, "get_source") else None
        digest.update(f"{name}\n{text}\n".encode())
    return digest.hexdigest()[:12]
