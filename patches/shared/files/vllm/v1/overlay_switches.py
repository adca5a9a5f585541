# SPDX-License-Identifier: Apache-2.0
"""Reads the switches of vllm-overlay's features. It needs the standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping


def is_on(
    variable: str, environ: Mapping[str, str] = os.environ, further: tuple[str, ...] = ()
) -> bool:
    """Whether the environment asks for what a variable switches; an unset or empty one does.

    further: values beside on and off that ask for it, too.

    Raises ValueError for any other value.
    """
    value = environ.get(variable) or "on"
    if value not in ("on", "off", *further):
        more = f", or to {' or '.join(further)}" if further else ""
        raise ValueError(f"{variable} is {value!r}; set it to on or off{more}")
    return value != "off"
