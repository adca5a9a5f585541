# SPDX-License-Identifier: Apache-2.0
"""Keys of draft graphs, and dispatch of batches to them. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "draft-graphs"

Role = Literal["first", "mixed", "step", "loop", "whole"]
ROLES: tuple[Role, ...] = get_args(Role)
#: Those whose requests all have as many tokens as each other.
UNIFORM_ROLES: tuple[Role, ...] = tuple(role for role in ROLES if role != "mixed")

#: Tokens of the graphs of mixed batches: one of more than 512 tokens wastes at most a third. The
#: largest bounds the static memory, which holds the target's hidden states of so many tokens.
MIXED_TOKENS = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)
#: Requests of these graphs, beside the most that there can be: few, since a request that is padding
#: costs little more than a row of the logits.
MIXED_REQUESTS = (16, 64, 256, 1024)


@dataclass(frozen=True)
class DraftKey:
    """Identifies one captured draft graph.

    role: `first` is the pass over the K+1 tokens that the target has just verified, `mixed` the
        same where requests have other numbers of tokens, as in a prefill, `step` one later pass
        over one token a request, `loop` all K-1 later passes, `whole` the only pass of a drafter
        that drafts K tokens at once.
    num_tokens: tokens of one pass, padding included.
    num_reqs: requests, padding included; num_tokens is a multiple of it, but for `mixed`.
    k: the K (num_speculative_tokens) that the graph was captured for.
    extra: tokens that the drafter adds to the K+1 of each request in `first` and `whole`.
    sampled: whether the drafts are drawn by temperature.
    """

    role: Role
    num_tokens: int
    num_reqs: int
    k: int
    extra: int = 0
    sampled: bool = False

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role {self.role!r} is not one of {', '.join(ROLES)}")
        if self.role == "mixed":
            if not 1 <= self.num_reqs <= self.num_tokens:
                raise ValueError(
                    f"a mixed graph of {self.num_reqs} requests has a token for each of them at "
                    f"least, not {self.num_tokens} in all"
                )
            return
        per_request = tokens_per_request(self.role, self.k, self.extra)
        if self.num_reqs < 1 or self.num_tokens != self.num_reqs * per_request:
            raise ValueError(
                f"a {self.role} graph of {self.num_reqs} requests with k={self.k} and "
                f"{self.extra} extra tokens for each has {self.num_reqs * per_request} tokens, not "
                f"{self.num_tokens}"
            )


def tokens_per_request(role: Role, k: int, extra: int = 0) -> int:
    """Tokens of each request in a pass of `role`, which is not `mixed`.

    In `first` and `whole` they are the K+1 tokens that each request of a uniform batch has, and
    the `extra` ones that the drafter adds.
    """
    return k + 1 + extra if role in ("first", "whole") else 1


def draft_key(role: Role, num_reqs: int, k: int, extra: int = 0) -> DraftKey:
    """The key of a graph for `num_reqs` requests; its token count follows from the role."""
    return DraftKey(role, num_reqs * tokens_per_request(role, k, extra), num_reqs, k, extra)


class DraftKeys:
    """The draft graphs that may run; none while it is empty."""

    def __init__(self) -> None:
        self._keys: set[DraftKey] = set()
        # Per role, k and sampled: the smallest fitting key by number of live requests.
        self._fits: dict[tuple[str, int, bool], list[DraftKey | None]] = {}
        # The same of mixed graphs: all keys, those for fewer requests first.
        self._mixed: dict[tuple[str, int, bool], list[DraftKey]] = {}

    def add(self, key: DraftKey) -> None:
        """Let `key` be dispatched; adding it again changes nothing."""
        self._keys.add(key)
        self._fits.pop(_kind(key), None)
        self._mixed.pop(_kind(key), None)

    def clear(self) -> None:
        """Let no key be dispatched."""
        self._keys.clear()
        self._fits.clear()
        self._mixed.clear()

    def dispatch(
        self, role: str, num_tokens: int, num_reqs: int, k: int, sampled: bool = False
    ) -> DraftKey | None:
        """The smallest graph that holds a uniform batch, or None.

        num_tokens, num_reqs: tokens of the pass, and requests, without padding. A batch whose
        token count is not that of a uniform batch of this role has no graph. Of `mixed` graphs it
        is one for as few requests as possible, and of these the one for the fewest tokens.
        """
        if role == "mixed":
            return self._dispatch_mixed(num_tokens, num_reqs, k, sampled)
        fits = self._fits.get((role, k, sampled))
        if fits is None:
            fits = self._fits[role, k, sampled] = self._table(role, k, sampled)
        if not 0 < num_reqs < len(fits):
            return None
        key = fits[num_reqs]
        if key is None or num_tokens * key.num_reqs != key.num_tokens * num_reqs:
            return None
        return key

    def _dispatch_mixed(
        self, num_tokens: int, num_reqs: int, k: int, sampled: bool
    ) -> DraftKey | None:
        kind = "mixed", k, sampled
        keys = self._mixed.get(kind)
        if keys is None:
            own = [key for key in self._keys if _kind(key) == kind]
            keys = self._mixed[kind] = sorted(own, key=lambda key: (key.num_reqs, key.num_tokens))
        for key in keys:
            if key.num_reqs >= num_reqs and key.num_tokens >= num_tokens:
                return key
        return None

    def _table(self, role: str, k: int, sampled: bool) -> list[DraftKey | None]:
        wanted = role, k, sampled
        keys = sorted(
            (key for key in self._keys if _kind(key) == wanted),
            key=lambda key: key.num_reqs,
        )
        table: list[DraftKey | None] = [None]
        for key in keys:
            table.extend([key] * (key.num_reqs + 1 - len(table)))
        return table

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[DraftKey]:
        return iter(sorted(self._keys, key=_order))


def _kind(key: DraftKey) -> tuple[str, int, bool]:
    """What keys that differ in their size alone have in common."""
    return key.role, key.k, key.sampled


def _order(key: DraftKey) -> tuple[bool, str, int, int, int]:
    return key.sampled, key.role, key.k, key.num_reqs, key.num_tokens


def ladder(limit: int) -> list[int]:
    """Request counts to capture, ascending, for batches of up to `limit` requests.

    1, 2, 4, then every 8 to 64, every 16 to 128, every 32 beyond, and `limit` itself, so that a
    batch wastes at most half of a small graph and 31 rows of a large one.
    """
    if limit < 1:
        return []
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, limit + 1, 32)]
    return sorted({size for size in sizes if size <= limit} | {limit})


def plan_keys(
    *,
    k: int,
    max_num_seqs: int,
    max_capture_tokens: int,
    first: bool,
    later: tuple[Role, ...],
    extra: int = 0,
    one_pass: bool = False,
    sampled: bool = False,
    max_first_tokens: int | None = None,
    max_mixed_tokens: int = 0,
) -> list[DraftKey]:
    """The graphs to capture, the largest of each role first.

    k: num_speculative_tokens.
    max_num_seqs: live requests that a batch can have.
    max_capture_tokens: the largest number of tokens of one pass; beyond it FlashAttention has no
        bound for its number of splits, and vLLM has no graphs either.
    first, later: the roles that the policy grants.
    extra: tokens that the drafter adds to each request in its first pass.
    one_pass: whether the first pass is the only one, which is the role `whole`.
    sampled: whether there is a second set of graphs, for drafts that are drawn by temperature.
    max_first_tokens: the largest number of tokens of a first pass, as of `sizes.most_first_tokens`;
        None for that of any pass.
    max_mixed_tokens: the largest number of tokens of a mixed first pass; 0 for no such graphs.
    """
    role: Role = "whole" if one_pass else "first"
    later_limit = 0 if one_pass else min(max_num_seqs, max_capture_tokens)
    first_tokens = max_capture_tokens if max_first_tokens is None else max_first_tokens
    first_limit = min(max_num_seqs, first_tokens // tokens_per_request(role, k, extra))
    # One ladder, so that a batch has as many padded rows in its first pass as in the later ones.
    sizes = sorted({*ladder(later_limit), *ladder(first_limit)}, reverse=True)
    keys = [draft_key(role, size, k, extra) for size in sizes if first and size <= first_limit]
    if k > 1 and not one_pass:
        keys += [draft_key(role, size, k, extra) for role in later for size in sizes]
    mixed = mixed_keys(k, sizes, max_mixed_tokens)
    return [*keys, *mixed, *(replace(key, sampled=True) for key in keys if sampled)]


def mixed_keys(k: int, sizes: Sequence[int], max_tokens: int) -> list[DraftKey]:
    """The graphs of mixed first passes, the largest first; none where `max_tokens` is 0.

    sizes: request counts that later passes have graphs for, of which a few are taken.
    max_tokens: the largest number of tokens of a batch.
    """
    if max_tokens < 1:
        return []
    limit = max(sizes, default=0)
    tokens = sorted({size for size in MIXED_TOKENS if size < max_tokens} | {max_tokens})
    keys, fewest = [], 0
    for reqs in sorted({size for size in sizes if size in MIXED_REQUESTS or size == limit}):
        # Batches with few tokens have few requests: K+1 tokens is what most of them have.
        least = max(reqs, min(fewest * (k + 1) + 1, max_tokens))
        keys += [DraftKey("mixed", size, reqs, k) for size in tokens if size >= least]
        fewest = reqs
    return sorted(keys, key=lambda key: (-key.num_tokens, -key.num_reqs))


def has_padding(key: DraftKey, plan: Iterable[DraftKey]) -> bool:
    """Whether batches with fewer requests than `key` has run in it, given all keys.

    Mixed batches with fewer of them run in a later pass of as many requests as their first one.
    """
    plan = list(plan)
    own = {other.num_reqs for other in plan if _kind(other) == _kind(key)}
    mixed = {other.num_reqs for other in plan if other.role == "mixed"}
    return any(
        max((size for size in sizes if size < key.num_reqs), default=0) + 1 < key.num_reqs
        for sizes in ([own, mixed] if key.num_reqs in mixed else [own])
    )
