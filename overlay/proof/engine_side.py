"""What ``step_time`` asks vLLM's workers, in whichever process they run.

vLLM mixes ``BenchExtension`` into its worker class (``worker_extension_cls``), so that
``LLM.collective_rpc`` reaches its methods by name.
"""

from __future__ import annotations

import collections
from typing import Any

from overlay.proof.engine_compat import drafter_of


class BenchExtension:
    """Mixed into vLLM's worker."""

    model_runner: Any

    def bench_describe(self) -> dict[str, Any]:
        """The runner's module; ``draft_graphs``, where the drafter has any: mode, keys by role."""
        drafter = drafter_of(self.model_runner)
        description: dict[str, Any] = {"runner": type(self.model_runner).__module__}
        graphs = getattr(drafter, "draft_graphs", None)
        if graphs is not None:
            roles = [key.role for key in drafter.cudagraph_dispatcher.draft_keys]
            description["draft_graphs"] = {
                "mode": graphs.mode,
                "keys": dict(collections.Counter(roles)),
                "withdrawn": graphs.withdrawn,
            }
        return description
