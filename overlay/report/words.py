"""Words and phrases that the sentences of reports are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from overlay.package import package_named

if TYPE_CHECKING:
    from overlay.report.model import TargetReport
    from overlay.results import FeatureResult, State


def vllm(target: TargetReport) -> str:
    """What to call a target in a sentence."""
    title = package_named(target.package).title
    return f"{title} {target.vllm}" if target.vllm else f"the {title} in {target.target}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def megabytes(size: int) -> str:
    """``12.3 MB``."""
    return f"{size / 1e6:.1f} MB"


def ids(features: Iterable[FeatureResult], most: int = 6) -> str:
    """The ids of features in a sentence; of more than ``most`` their number.

    The first few of many would hide the one that a reader looks for; the table names them all.
    """
    names = [feature.feature for feature in features]
    return f"{len(names)} features" if len(names) > most else enumeration(names)


def agree(things: Sequence[object], singular: str, plural: str) -> str:
    """The form of a verb that agrees in number with the things of which it is said."""
    return singular if len(things) == 1 else plural


def is_are(things: Sequence[object]) -> str:
    """``is`` or ``are``."""
    return agree(things, "is", "are")


def was_were(things: Sequence[object]) -> str:
    """``was`` or ``were``."""
    return agree(things, "was", "were")


def in_states(target: TargetReport, *states: State) -> list[FeatureResult]:
    """The features of a target that are in one of these states."""
    return [feature for feature in target.features if feature.state in states]


def enumeration(words: Sequence[str], most: int = 6) -> str:
    """``a, b and c``; of more than ``most`` words the first and how many others there are."""
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} others"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
