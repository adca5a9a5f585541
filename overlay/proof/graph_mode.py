"""What the engines of ``overlay verify`` are compared as.

An engine's own process has this module, and none of those that judge and report.
"""

from __future__ import annotations

from enum import Enum


class GraphMode(str, Enum):
    """What is compared: on model runner V1 ways of drafting, by ``OVERLAY_DRAFT_GRAPHS``."""

    OFF = "off"
    STEP = "step"
    LOOP = "loop"
    #: For configurations whose drafts come from one pass, so that steps and loops are the same.
    WHOLE = "auto"
    #: The release's own files, with which the overlay is compared on any model runner.
    STOCK = "stock"
    #: All features, as an engine gets them by itself.
    OVERLAY = "overlay"

    @property
    def measure(self) -> bool:
        """Whether the others are compared with it."""
        return self in (GraphMode.OFF, GraphMode.STOCK)

    @property
    def has_graphs(self) -> bool:
        """Whether it is draft graphs that it is about."""
        return self in (GraphMode.STEP, GraphMode.LOOP, GraphMode.WHOLE)

    @property
    def shown(self) -> str:
        """The name of the mode for people."""
        return "whole" if self is GraphMode.WHOLE else self.value
