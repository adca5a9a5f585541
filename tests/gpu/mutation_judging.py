"""What the results of ``gpu_mutations.py`` come to.  Pure: knows neither GPUs nor engines."""

from __future__ import annotations

import re
from typing import Any

from tests.gpu.judging import judge
from tests.gpu.mutation_hooks import executed_line
from tests.gpu.mutation_plan import GpuMutation

Result = dict[str, Any]


def judge_mutations(results: list[Result], mutations: dict[str, GpuMutation]) -> None:
    """Say of each control whether it is right, and of each mutation whether it was caught.

    Sets ``ok`` and ``why`` of all; ``mutation``, ``must``, ``expected``, ``signs`` and ``caught``
    of a mutated one; and ``shown``, which is what to print.  ``ok`` of a mutated cell means that it
    is not a failure: it was caught, or need not be.

    :param mutations: by the names of their cells.  A cell without one is a control.
    """
    judge(results)
    controls = {(one["cell"], one["mode"]): one for one in results if one["cell"] not in mutations}
    for control in controls.values():
        why = _why_no_control(control) if control["ok"] else control["why"]
        control["ok"] = why is None
        if why is not None:
            control["why"] = why
        control["shown"] = f"CONTROL IS WRONG: {why}" if why else "control is right"
    for one in results:
        if one["cell"] in mutations:
            own = controls.get((one["cell"].partition("~")[0], one["mode"]))
            _judge_mutated(one, mutations[one["cell"]], own)


def _judge_mutated(one: Result, mutation: GpuMutation, control: Result | None) -> None:
    found = signs(one, mutation, control)
    expected = [sign for sign in found if sign in mutation.signs]
    one |= {"mutation": mutation.name, "must": mutation.must, "expected": list(mutation.signs)}
    one |= {"signs": found, "caught": False, "ok": False}
    for name in ("why", "shown"):
        one.pop(name, None)
    unknown = _why_unknown(one, mutation, control)
    if unknown is not None:
        one["why"] = one["shown"] = f"nothing is known: {unknown}"
        return
    one["caught"] = bool(expected)
    one["ok"] = one["caught"] or not mutation.must
    if expected:
        one["shown"] = f"caught: {', '.join(expected)}"
        return
    instead = ", ".join(found) or _ended_by(one) or "nothing"
    one["shown"] = (
        f"not caught: expected {' or '.join(mutation.signs)}, found {instead}"
        f"{'' if mutation.must else ' (it need not be)'}"
    )
    one["why"] = one["shown"]


def _why_unknown(one: Result, mutation: GpuMutation, control: Result | None) -> str | None:
    """Why nothing follows from a mutated cell."""
    lines = "\n".join(one["log"])
    missing = {
        file for file, *_ in mutation.changes if executed_line(file, mutation.name) not in lines
    }
    if missing:
        return f"not executed: mutated {', '.join(sorted(missing))}; {one.get('failed', '')[-300:]}"
    if control is None:
        return "its control has not run yet"
    return None if control["ok"] else f"its control is wrong: {control['why']}"


def _why_no_control(one: Result) -> str | None:
    """Why a cell that equals the oracle does not serve as a control yet."""
    if one["equals"] != "oracle":
        return f"equals {one['equals']}, not the oracle"
    hooks = one.get("hooks", {})
    if "mutation_hooks:pool_bytes" in hooks and not _pool(one):
        return "no memory of the graphs' pool was found"
    late = hooks.get("mutation_hooks:late_reads")
    if late is not None and (late["changed"] or not late["read"]):
        return f"of {late['read']} results that were read late, {late['changed']} had changed"
    watched = hooks.get("mutation_hooks:operators")
    if watched is not None and not (watched["serving"] and watched["captured"]):
        return "no operator was seen"
    if watched is not None and watched["host"]:
        return f"copied to or from the host, or waited: {watched['host']}"
    return None


def _pool(one: Result | None) -> int:
    hooks = (one or {}).get("hooks", {})
    return int((hooks.get("mutation_hooks:pool_bytes") or {}).get("bytes", 0))


def signs(one: Result, mutation: GpuMutation, control: Result | None) -> list[str]:
    """Everything that shows that a cell is not right, by the names of `mutation_plan.Sign`."""
    found = []
    if "counts" not in one:
        raised = _ended_by(one)
        if "AddressError" in raised.partition(":")[0]:
            found.append("address check")
        elif re.search(mutation.says, raised):
            found.append("error")
    elif one["equals"] != "oracle":
        if not _all(one["prompt_logprobs_ok"]):
            found.append("prompt logprobs")
        if not (_all(one["tokens_ok"]) and _all(one["steps_ok"]) and one["counts_ok"]):
            found.append("acceptance")
    withdrawn = [line for line in one["log"] if "Draft graphs withdrawn" in line]
    if any(re.search(mutation.says, line.partition("upstream: ")[2]) for line in withdrawn):
        found.append("withdrawn")
    if _pool(one) > _pool(control) > 0:
        found.append("memory")
    hooks = one.get("hooks", {})
    if (hooks.get("mutation_hooks:late_reads") or {}).get("changed"):
        found.append("late reader")
    if (hooks.get("mutation_hooks:operators") or {}).get("host"):
        found.append("host")
    return found


def _ended_by(one: Result) -> str:
    """What an engine that failed raised, or else how it ended; nothing if it did not fail."""
    status: str = one.get("failed", "").partition(": ")[0]
    raised: str | None = one.get("raised")
    return raised or status


def _all(some: str) -> bool:
    """Whether "n of m" means all of them."""
    right, _, there = some.partition(" of ")
    return right == there
