"""Stop an engine whose ranks run different code."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from overlay.errors import OverlayError
from overlay.in_memory.import_watch import when_imported
from overlay.untrusted import parse_json, printable

#: Gives this process's report for its rank.
Describe: TypeAlias = "Callable[[int], RankReport]"

_MODULE = "vllm.distributed.parallel_state"

_FUNCTION = "initialize_model_parallel"


def watch(describe: Describe, required: bool = False) -> None:
    """Have this process compare itself with its peers as soon as vLLM has made its groups.

    vLLM makes them before it loads the model, in ``initialize_model_parallel`` of
    ``vllm.distributed.parallel_state``, whichever executor started the process (multiprocess, Ray
    or the external launcher).

    :param describe: gives this process's report for its rank.
    :param required: whether vLLM must not go on where the ranks cannot be compared.
    """
    lost = "the ranks of this engine are not compared; `overlay status --live` shows what each runs"
    when_imported(_MODULE, lambda module: _wrap(module, describe), None if required else lost)


def _wrap(module: ModuleType, describe: Describe) -> None:
    inner = getattr(module, _FUNCTION)
    if getattr(inner, "_overlay_compares", False):
        return

    @functools.wraps(inner)
    def initialize_then_compare(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        group = module.get_world_group()

        compare(describe(group.rank), group)
        return result

    # A function may carry attributes, but its type tells mypy of none.
    initialize_then_compare._overlay_compares = True  # type: ignore[attr-defined]
    setattr(module, _FUNCTION, initialize_then_compare)


#: Seconds in which all other ranks must say what they run: one bound for all of them together.
#: They come here within seconds of another, since vLLM has just made their groups.
TIMEOUT = 120.0


#: Seconds to wait for a rank that comes after one which is missing: the key is there, or is not.
_LEAST = 0.1


class RanksDiffer(OverlayError, RuntimeError):
    """Ranks of one engine run different code; all of them stop."""


class RankReport(NamedTuple):
    """What one rank runs.

    :ivar digest: over the patch set, its states and every ``OVERLAY`` switch; see ``activation``.
    :ivar others: name and version of each package beside vLLM that has an active feature.
    """

    rank: int
    host: str
    pid: int
    vllm: str
    digest: str
    summary: str
    others: tuple[tuple[str, str], ...] = ()


def _decoded(answer: bytes | Mapping[str, Any]) -> RankReport:
    """The report that a rank sent, as JSON or as its fields.

    Another version of the overlay may send more fields.

    :raises RanksDiffer: if this version cannot read the report.
    """
    try:
        row = parse_json(answer) if isinstance(answer, bytes) else answer
        return RankReport(
            int(row["rank"]),
            *(str(row["host"]), int(row["pid"]), str(row["vllm"])),
            *(str(row["digest"]), str(row["summary"])),
            tuple((str(name), str(version)) for name, version in row.get("others", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RanksDiffer(
            "vllm-overlay: a rank says what it runs in a form that this one cannot read "
            f"({printable(repr(error))}); expected one version of vllm-overlay in all ranks. "
            "Install the same one on every node, or set OVERLAY=off on all of them, and start "
            "again."
        ) from error


def table(reports: Iterable[RankReport]) -> str:
    """Reports as lines of host, rank, the release of each patched package, and digest."""
    from overlay.report.lines import Span, aligned

    ranks = sorted(reports, key=lambda each: each.rank)
    names = sorted({name for each in ranks for name, _ in each.others})
    rows = [("host", "rank", "pid", "vllm", *names, "digest", "runs")]
    for each in ranks:
        versions = dict(each.others)
        releases = (versions.get(name, "-") for name in names)
        place = (each.host, str(each.rank), str(each.pid), each.vllm)
        rows.append((*place, *releases, each.digest[:12], each.summary))
    return "\n".join(str(line) for line in aligned([[Span(cell) for cell in row] for row in rows]))


def require_equal(reports: Sequence[RankReport]) -> None:
    """Stop where two ranks run different code.

    :raises RanksDiffer: with the table of all ranks.
    """
    if len({(r.digest, r.vllm, r.others) for r in reports}) > 1:
        raise RanksDiffer(
            "vllm-overlay: the ranks of this engine do not run the same code; expected one release "
            "of vLLM and of each other patched package, and one digest, everywhere; found:\n"
            + printable(table(reports), lines=True)
            + "\nMake these packages, the overlay, its patches folders and its OVERLAY switches "
            "equal on every node, or set OVERLAY=off on all of them, and start again."
        )


def compare(mine: RankReport, group: Any) -> None:
    """Compare over vLLM's own world group (``cpu_group``); a no-op for a single process.

    A rank without the overlay never answers.  It is found through the group's store first, since a
    collective that one rank does not enter would hang until the group's own timeout.

    :raises RanksDiffer: if a rank runs other code, or runs without the overlay.
    """
    if group.world_size == 1:
        return
    # Elastic expert parallelism has a world of its own beside torch's, with its own way to gather.
    apart = getattr(group, "tcp_store_group", None)
    if apart is not None:
        rows = apart.all_gather_obj(mine._asdict())
    else:
        import torch.distributed as dist

        _require_all(mine, dist.distributed_c10d._get_default_store(), group.world_size)
        rows = [None] * group.world_size
        dist.all_gather_object(rows, mine._asdict(), group=group.cpu_group)
    require_equal([_decoded(row) for row in rows])


def _require_all(mine: RankReport, store: Any, world_size: int) -> None:
    """Stop where a rank does not say what it runs within ``TIMEOUT`` seconds.

    :param store: the store over which torch made the process group.
    :raises RanksDiffer: naming every rank that is missing, with the table of the others.
    """
    store.set(f"vllm-overlay/{mine.rank}", json.dumps(mine._asdict()))
    reports: list[RankReport] = []
    silent: list[int] = []
    deadline = time.monotonic() + TIMEOUT
    for rank in range(world_size):
        key = f"vllm-overlay/{rank}"
        # A rank that answered in time is there at once, however long an earlier one was awaited.
        seconds = max(deadline - time.monotonic(), _LEAST)
        try:
            store.wait([key], timedelta(seconds=seconds))
        except RuntimeError:  # torch raises DistStoreError, a RuntimeError, when time is up
            silent.append(rank)
        else:
            reports.append(_decoded(store.get(key)))
    if silent:
        raise RanksDiffer(
            f"vllm-overlay: rank {', '.join(map(str, silent))} did not say what it runs within "
            f"{TIMEOUT:.0f} s; expected the overlay in all {world_size} ranks, found it in these:\n"
            f"{printable(table(reports), lines=True)}\n"
            "Install the same overlay there, or set OVERLAY=off on all nodes, and start again."
        )
