# SPDX-License-Identifier: Apache-2.0
"""Stops ranks that would not draft alike, before one of them waits for another.

All ranks of a tensor-parallel group capture draft graphs together, or none does: a rank whose
switches, patches or vLLM differ would leave the others in their first collective. So each tells the
others what it runs, once its draft model is loaded, through the store over which they met: no
collective, since a rank without the patches enters none. The overlay's plugin compares more, and
earlier (docs/auto-apply.md); this is for ranks whose patches are on disk.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from .attention import UNTRIED_VARIABLE
from .policy import CHECK_VARIABLE, MODE_VARIABLE, Decision, Mode

#: Seconds to wait for the other ranks, whose weights may lie on slower disks: as long as NCCL waits
#: by default for a rank in a collective, of which vLLM's next step has several.
PATIENCE = 600.0
#: Where ranks tell what they run, in the store.
_KEY = "vllm-overlay/draft-graphs/{round}/{rank}"
# All ranks load their draft models equally often.
_rounds = itertools.count()

#: What a rank runs: the name of each setting and its value.
Settings = Mapping[str, str]


class RanksDiffer(RuntimeError):
    """Tensor-parallel ranks do not draft alike; vLLM must not start."""


def settings(mode: Mode, decision: Decision, *, check: bool, untried: bool) -> dict[str, str]:
    """What must be equal on all tensor-parallel ranks.

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
        "drafts": "in graphs" if decision.any else f"as upstream: {'; '.join(decision.refusals)}",
    }


def require_equal_settings(mine: Settings) -> None:
    """Tell the other ranks what this one runs, and stop unless its tensor-parallel peers run it.

    mine: as `settings` returns it.

    Raises RanksDiffer, on every rank that waits for it, where ranks differ or say nothing within
    `PATIENCE`. Every rank has to call this once for each draft model that it loads; one rank alone
    returns at once.
    """
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return
    import torch.distributed

    store = torch.distributed.distributed_c10d._get_default_store()
    number = next(_rounds)
    own = int(group.ranks[group.rank_in_group])
    row = {"host": socket.gethostname(), "settings": dict(mine)}
    store.set(_KEY.format(round=number, rank=own), json.dumps(row))
    rows, silent = _read(store, number, group.ranks)
    if silent:
        raise RanksDiffer(
            f"Draft graphs: tensor-parallel rank {', '.join(map(str, silent))} did not say within "
            f"{PATIENCE:.0f} s how it drafts; expected vLLM {mine.get('vLLM')} with the patches of "
            "vllm-overlay on all ranks. Its log says what it does instead; install the same "
            "patched vLLM on its node, or revert the patches on all nodes, and start again. The "
            f"store over which the ranks met says: {'; '.join(silent.values())}"
        )
    lines = differences({rank: row["settings"] for rank, row in rows.items()})
    if lines:
        hosts = ", ".join(f"rank {rank} on {row['host']}" for rank, row in sorted(rows.items()))
        raise RanksDiffer(
            "Draft graphs: tensor-parallel ranks differ, and would wait for each other while they "
            "capture; expected equal settings, found:\n"
            + "\n".join(lines)
            + f"\n({hosts}). Make the switches and the patched vLLM equal on every node, and start "
            "again. Ray copies variables to other nodes only as docs/many-gpus.md says."
        )


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
    store: Any, number: int, peers: Iterable[int]
) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """What each rank says; and the ranks that say nothing in time, with the store's error."""
    rows: dict[int, dict[str, Any]] = {}
    silent: dict[int, str] = {}
    for rank in map(int, peers):
        key = _KEY.format(round=number, rank=rank)
        try:
            # Once one was too late, the others have had the same time.
            store.wait([key], timedelta(seconds=1.0 if silent else PATIENCE))
        # torch raises DistStoreError when time is up, and others where the store has gone.
        except RuntimeError as error:
            silent[rank] = str(error)
        else:
            rows[rank] = json.loads(store.get(key))
    return rows, silent


def _digest() -> str:
    """The first digits of a hash over the text of this package's modules, as they were imported.

    They are all imported together, so that each rank has the same ones.
    """
    digest = hashlib.sha256()
    prefix = f"{__package__}."
    for name in sorted(name for name in sys.modules if name.startswith(prefix)):
        loader: Any = getattr(sys.modules[name].__spec__, "loader", None)
        text = loader.get_source(name) if hasattr(loader, "get_source") else None
        digest.update(f"{name}\n{text}\n".encode())
    return digest.hexdigest()[:12]
