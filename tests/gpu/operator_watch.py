"""Which PyTorch operators run, and which of them have to do with the host.  Needs PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

#: They wait for a tensor, and give the host its values.  In inference mode operators that are made
#: of others are seen by their own names.
READS = ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero")


class OperatorWatch(TorchDispatchMode):  # type: ignore[misc, unused-ignore] # no torch, no type
    """Counts the operators inside, and apart those that copy to or from the host, or wait for it.

    These are the ones with tensors on several devices, and those that read values.  A number as a
    tensor on the host is an argument of a kernel, and no copy.
    """

    def __init__(self, counts: Counter[str], host: Counter[str]) -> None:
        super().__init__()
        self._counts, self._host = counts, host

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self._counts[name] += 1
        tensors = [
            each for each in tree_iter((args, kwargs, result)) if isinstance(each, torch.Tensor)
        ]
        devices = {each.device.type for each in tensors if each.dim() or each.device.type != "cpu"}
        if len(devices) > 1 or any(f".{read}." in name for read in READS):
            self._host[name] += 1
        return result
