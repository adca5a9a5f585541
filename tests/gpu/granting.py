"""Grant the drafters that the policy refuses only because no GPU has run them.

vLLM imports this in every worker (``worker_extension_cls``), before it loads the model.
"""

from __future__ import annotations

from vllm.v1.spec_decode.draft_graphs import policy

policy.DRAFTERS |= policy.UNTRIED_DRAFTERS
policy.UNTRIED_DRAFTERS = frozenset()


class GrantedDrafters:
    """Mixed into vLLM's worker; all it does is done when this module is imported."""
