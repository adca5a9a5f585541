"""Whether a sample of tokens has a given distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

#: Quantile of the normal distribution that one of 10,000 right samples passes.
RARE = 3.719
#: What is expected less often is counted as one.
LEAST = 5


def differs_from(sample: Iterable[Any], chances: Mapping[int, float]) -> bool:
    """Pearson's test: whether a sample differs more than one of 10,000 right ones would.

    :param sample: token ids; -1 stands where there is none.
    :param chances: of each token that may come. Any other one is wrong by itself.
    """
    counts = Counter(int(token) for token in sample if token >= 0)
    total = sum(counts.values())
    if not total:
        raise ValueError("the sample has no token")
    if set(counts) - {token for token, chance in chances.items() if chance > 0}:
        return True
    rare = [token for token, chance in chances.items() if chance * total < LEAST]
    cells = [(counts[t], c * total) for t, c in chances.items() if t not in rare]
    if rare:
        cells.append((sum(counts[t] for t in rare), total * sum(chances[t] for t in rare)))
    statistic = sum((seen - due) ** 2 / due for seen, due in cells if due)
    return statistic > limit(len(cells) - 1)


def limit(freedom: int) -> float:
    """The chi-square distribution's quantile, as Wilson and Hilferty approximate it.

    It is a little above the tables' value: 8 % with one degree of freedom, 1.3 % with nine.
    """
    if freedom < 1:
        return 0.0
    part = 2 / (9 * freedom)
    return freedom * float(1 - part + RARE * part**0.5) ** 3
