"""What the fuzz showed of each mend: the table of docs/appendix/testing.md, from the results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.fuzz.pairs import MENDS
from tests.support.shipped_features import EAGER, REASONING, RETIRED
from tests.support.shipped_features import MENDS as SHIPPED

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results"
PAGE = ROOT / "docs/appendix/testing.md"
#: Those whose faults are brought about, or asked for, where this is counted.
PROVOKED = ("draft-sampling", "draft-weights", "prompt-logprobs")
ASKED = "requests with min_p or logit_bias beside drafts"
LEAST_STEPS = 20_000


def runs(pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each run of the results of this name, with the file's."""
    for file in sorted(RESULTS.glob(pattern)):
        result = json.loads(file.read_text(encoding="utf-8"))
        for each in result.get("runs", [result]):
            yield file.name, each


def left_out(run: dict[str, Any]) -> str | None:
    """The mend that a run does without."""
    command = run["command"]
    return command[command.index("--without") + 1] if "--without" in command else None


def evidence() -> dict[str, tuple[Counter[str], str]]:
    """By mend, steps of each release without a difference, and the file that fails without it."""
    steps: dict[str, Counter[str]] = {name: Counter() for name in (*MENDS, REASONING)}
    failing: dict[str, str] = {}
    for file, run in runs("cpu-fuzz-mends-*.json"):
        mend = left_out(run)
        if mend is not None:
            assert run["differences"]
            failing[mend] = file
        elif not run["both died"]:
            assert not run["differences"]
            for name in MENDS:
                if name not in PROVOKED or run["work"]["mended"].get(ASKED):
                    steps[name][run["release"]] += run["steps"]
    for file, run in runs("cpu-fuzz-reasoning-end-*.json"):
        for kind in ("synchronous", "asynchronous"):
            stock, mended = (run[f"{which}, {kind}"] for which in ("stock", "mended"))
            assert (mended["answered otherwise"], mended["error"]) == (0, None)
            assert stock["answered otherwise"]
            steps[REASONING][run["release"]] += mended["steps"]
        failing[REASONING] = file
    return {name: (each, failing[name]) for name, each in sorted(steps.items())}


def table() -> str:
    """The table of the page."""
    lines = ["| mend | steps without a difference | fails without it |", "|---|---|---|"]
    for name, (steps, file) in evidence().items():
        each = ", ".join(
            f"{release} {steps[release]:,}" for release in sorted(steps, key=Version, reverse=True)
        )
        total = f"{sum(steps.values()):,}"
        lines.append(f"| `{name}` | {total}: {each} | [yes](../../bench/results/{file}) |")
    return "\n".join(lines)


def test_each_mend_has_its_steps_and_a_run_that_fails_without_it() -> None:
    shown = evidence()
    # A draft on model runner V2 needs a GPU.
    assert {*shown, EAGER} == {*SHIPPED, *RETIRED}
    for name, (steps, _) in shown.items():
        assert sum(steps.values()) >= LEAST_STEPS, name


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), table()
