"""What the results of ``acceptance.py`` come to.  Pure: knows neither GPUs nor engines."""

from __future__ import annotations

from typing import Any

_EXACT = ("tokens_ok", "steps_ok", "prompt_logprobs_ok", "counts", "counts_ok")
_REFERENCE, _AGAIN = "off", "off again"
#: By how much a prompt logprob may differ from that of the engine without graphs.
CLOSE = 1e-3


def judge(results: list[dict[str, Any]]) -> None:
    """Set ``equals``, ``ok`` and, where it is not, ``why`` of every cell.

    A cell equals the oracle, or else the engine without graphs, in the same cell.  That engine is
    never compared with itself: where it leaves the oracle, it is a measure only if a second run
    of it, ``off again``, comes to the same.

    :param results: dictionaries with ``cell``, ``mode`` and ``expects`` and, unless the engine
        failed, the figures of ``acceptance.verdict``.  Where ``every_size`` is set, every graph
        that was captured must have been replayed.
    """
    cells = {(one["cell"], one["mode"]): one for one in results}
    for one in results:
        why = _unequal(one, cells) or _graphs_wrong(one)
        one.pop("why", None)
        one["ok"] = why is None
        if why is not None:
            one["why"] = why


def _unequal(one: dict[str, Any], cells: dict[tuple[str, str], dict[str, Any]]) -> str | None:
    """Why a cell equals nothing that is a measure; ``None``, and ``equals`` set, if it does."""
    if not _ran(one):
        return "the engine failed"
    if one["equals"] == "oracle":
        return None
    one["equals"] = None
    reference = cells.get((one["cell"], _REFERENCE))
    again = cells.get((one["cell"], _AGAIN))
    if one["mode"] in (_REFERENCE, _AGAIN):
        if not _ran(reference) or not _ran(again):
            return "leaves the oracle without graphs"
        if not _same(one, reference) or not _same(one, again):
            return "differs from run to run without graphs"
        one["equals"] = "a second run without graphs"
        return None
    if not _same(one, reference):
        return "neither the oracle nor the engine without graphs"
    if _ran(again) and not _same(one, again):
        return "the engine without graphs differs from run to run"
    one["equals"] = "itself without graphs"
    return None


def _ran(one: dict[str, Any] | None) -> bool:
    return one is not None and "counts" in one


def _same(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    return (
        other is not None
        and "counts" in other
        and all(one[key] == other[key] for key in _EXACT)
        and _close(one.get("prompt_logprobs", []), other.get("prompt_logprobs", []))
    )


def _close(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether each request has the prompt logprobs that the other engine gave it.

    What the other one had wrong is not compared: it was whatever lay in its memory.  A NaN is
    like nothing.
    """
    pairs = [
        (mine["values"], theirs["values"])
        for mine, theirs in zip(one, other, strict=True)
        if theirs["right"]
    ]
    return all(
        len(mine) == len(theirs)
        and all(abs(left - right) <= CLOSE for left, right in zip(mine, theirs, strict=True))
        for mine, theirs in pairs
    )


def _ranks(found: dict[str, Any] | None) -> list[dict[str, Any]]:
    return (found or {}).get("ranks") or ([found] if found else [])


def _graphs_wrong(one: dict[str, Any]) -> str | None:
    """Why the draft graphs did not do what the cell expects of them."""
    ran, captured = _ranks(one.get("ran")), _ranks(one.get("captured"))
    if not ran or not captured:
        return "nothing is known of the drafter"
    replays = [rank["replays"] for rank in ran]
    if any(found != replays[0] for found in replays):
        return f"the ranks replayed differently: {replays}"
    some = sum(replays[0].values()) > 0
    withdrawn = [rank["withdrawn"] for rank in ran]
    if one["expects"] == "graphs":
        if any(withdrawn):
            return f"withdrawn: {withdrawn}"
        if not some:
            return "no graph was replayed"
        kind = one.get("every_size")
        return _missed(ran[0], captured[0], mixed=kind == "mixed") if kind else None
    if some:
        return "graphs were replayed that should not be there"
    if any(rank.get("keys") for rank in captured):
        return f"draft keys are left: {[rank.get('keys') for rank in captured]}"
    return _not_withdrawn(one, withdrawn) if one["expects"] == "withdrawn" else None


def _missed(ran: dict[str, Any], captured: dict[str, Any], *, mixed: bool) -> str | None:
    """Which graphs were captured and never replayed, by number; ``sizes`` are ``role requests``.

    :param mixed: whether they are those of mixed batches, and not the others.
    """
    replayed = [size.partition(" ")[0] for size in ran["sizes"]]
    missed = {
        role: count - replayed.count(role)
        for role, count in captured["keys"].items()
        if count != replayed.count(role) and (role == "mixed") is mixed
    }
    return f"captured and never replayed: {missed}" if missed else None


def _not_withdrawn(one: dict[str, Any], withdrawn: list[str | None]) -> str | None:
    """Why a capture that failed on purpose was not withdrawn as it must be."""
    if not all(withdrawn):
        return f"not withdrawn on every rank: {withdrawn}"
    warnings = [line for line in one["log"] if "WARNING" in line and "withdrawn" in line]
    if len(warnings) != len(withdrawn):
        return f"{len(warnings)} warnings on {len(withdrawn)} ranks"
    if sum(one["reason"] in line for line in warnings) != 1:
        return "not exactly one warning gives the reason"
    return None
