"""The mutations of the code that captures, stages, dispatches and replays."""

from __future__ import annotations

from capture_mutations import CAPTURE_MUTATIONS
from check_mutations import CHECK_MUTATIONS
from replay_mutations import REPLAY_MUTATIONS

MUTATIONS = (*CAPTURE_MUTATIONS, *REPLAY_MUTATIONS, *CHECK_MUTATIONS)
