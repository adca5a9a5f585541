"""`dp_rank.py` with a micro-batched target: batches of two requests and more are split into two.

``python dbo_rank.py PLAN.json``. The target's micro-batches run eagerly, in threads that take turns
at each exchange between the ranks (`tests.support.micro_batches`). How often each thing happened to
a batch of the target is in `DpOutcome.steps`, as "target ran" and so on.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

from tests.draft_graphs import dp_rank, harness

#: Runs that switch off what lets vLLM start, by name.
WITHOUT = {
    "without dbo-drafts": {"OVERLAY_DBO_DRAFTS": "off"},
    "without dbo-eagle3": {"OVERLAY_DBO_EAGLE3": "off"},
}
#: What the target did with its batches in this process.
SEEN: Counter[str] = Counter()


class MicroBatchedEngine(dp_rank.DpEngine):
    """One rank's engine, whose target is split."""

    def run_rank(self, dp_run: dp_rank.DpRun, scratch: Path, log: harness.Log) -> dp_rank.DpOutcome:
        SEEN.clear()
        with mock.patch.dict(os.environ, WITHOUT.get(dp_run.name, {})):
            outcome = super().run_rank(dp_run, scratch, log)
        target = {f"target {deed}": number for deed, number in SEEN.items()}
        return replace(outcome, steps={**outcome.steps, **target})


def main() -> None:
    """Run what `dp_rank.py` runs."""
    from tests.draft_graphs import dp_collectives
    from tests.support import micro_batches

    stock = dp_collectives.install

    def install() -> None:
        stock()
        micro_batches.allow()
        micro_batches.install_on_cpu()
        micro_batches.watch(lambda deed: SEEN.update([deed]))

    with (
        mock.patch.object(dp_collectives, "install", install),
        mock.patch.object(dp_rank, "DpEngine", MicroBatchedEngine),
    ):
        dp_rank.main()


if __name__ == "__main__":
    main()
