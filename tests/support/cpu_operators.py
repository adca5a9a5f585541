"""vLLM's compiled operators for the CPU at hand, of which it brings a library for each kind.

Two of these libraries in one process register the same operators twice, at which PyTorch ends it:
so a test asks vLLM for the one that an engine would load, and imports none by its name.
"""

from __future__ import annotations

import pytest


def load() -> None:
    """Load them; skip the test, or the module that is imported, where vLLM is not for CPU."""
    platform = pytest.importorskip("vllm.platforms").current_platform
    if not platform.is_cpu():
        pytest.skip("needs vLLM for CPU", allow_module_level=True)
    platform.import_kernels()
