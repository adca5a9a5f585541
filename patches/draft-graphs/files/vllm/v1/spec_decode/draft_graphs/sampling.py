# SPDX-License-Identifier: Apache-2.0
"""Draws drafts by temperature inside the graphs (`draft_sample_method: probabilistic`, from 0.22).

Upstream's own code draws: a softmax of the logits by temperature, then exponential noise from the
device's default generator, which a graph takes fresh numbers from at each replay. Where no row is
padded a batch gets the very numbers that it would get without graphs; elsewhere the generator
deals them out over more rows, and the drafts have the same distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .argmax import split_argmax

#: The temperature of padded rows.
PADDING_TEMPERATURE = 1.0


@dataclass(frozen=True)
class _Temperatures:
    """What upstream's sampler reads of a batch: some requests may be greedy (temperature 0)."""

    # [rows] float32
    temperature: torch.Tensor
    all_greedy: bool = False
    all_random: bool = False


class Sampling:
    """Static tensors of sampled drafts for up to R requests.

    temperature: [R] float32.
    probs: [R, K, V] float32, from which each draft was drawn; None before the first warm-up, which
        shows how many tokens (V) the logits are for.
    step_probs: [R, V] float32, those of the last `step`.
    """

    def __init__(self, proposer: Any, max_reqs: int) -> None:
        self.temperature = torch.full(
            (max_reqs,), PADDING_TEMPERATURE, dtype=torch.float32, device=proposer.device
        )
        self.probs: torch.Tensor | None = None
        self.step_probs: torch.Tensor | None = None
        self._k = int(proposer.speculative_config.num_speculative_tokens)

    def draw(
        self,
        proposer: Any,
        # [reqs, hidden], or [reqs * K, hidden] of a drafter with one pass, request by request
        hidden_states: torch.Tensor,
        reqs: int,
        # which of the K drafts of each request these are; None: that of a `step`
        index: int | None,
    ) -> torch.Tensor:
        """Draw a draft for each row by upstream's sampler and keep its probabilities.

        Returns [rows] int64.
        """
        rows = hidden_states.shape[0]
        temperature = self.temperature[:reqs]
        if rows != reqs:
            temperature = temperature.repeat_interleave(rows // reqs, output_size=rows)
        with split_argmax():
            tokens, probs = proposer._sample_draft_tokens(hidden_states, _Temperatures(temperature))
        self._keep(probs, reqs, index)
        return torch.as_tensor(tokens)

    def _keep(self, probs: torch.Tensor, reqs: int, index: int | None) -> None:
        """Copy the probabilities, [rows, V], to where `taken` finds them."""
        if self.probs is None or self.step_probs is None:
            most, vocab = self.temperature.shape[0], probs.shape[-1]
            self.probs = probs.new_zeros((most, self._k, vocab))
            self.step_probs = probs.new_zeros((most, vocab))
        if probs.shape[0] != reqs:
            self.probs[:reqs].copy_(probs.view(reqs, self._k, -1))
        elif index is None:
            self.step_probs[:reqs].copy_(probs)
        else:
            self.probs[:reqs, index].copy_(probs)

    def stage(
        self,
        # [reqs] float32
        temperature: torch.Tensor,
        reqs: int,
        padded: int,
    ) -> None:
        """Copy the temperatures of the live rows and pad the others."""
        self.temperature[:reqs].copy_(temperature)
        if padded > reqs:
            self.temperature[reqs:padded].fill_(PADDING_TEMPERATURE)

    def keep_step(self, reqs: int, index: int) -> None:
        """Keep the probabilities of the last `step` as those of the draft of that index."""
        if self.probs is not None and self.step_probs is not None:
            self.probs[:reqs, index].copy_(self.step_probs[:reqs])

    def taken(self, reqs: int, k: int) -> torch.Tensor | None:
        """The probabilities of the last drafts, [reqs, k, V]: valid until the next replay.

        vLLM reads them when it verifies these drafts, before it drafts again.
        """
        return None if self.probs is None else self.probs[:reqs, :k]
