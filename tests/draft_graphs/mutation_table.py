"""The mutations of the code that captures, stages, dispatches and replays."""

from __future__ import annotations

from tests.draft_graphs.capture_mutations import CAPTURE_MUTATIONS
from tests.draft_graphs.check_mutations import CHECK_MUTATIONS
from tests.draft_graphs.replay_mutations import REPLAY_MUTATIONS

MUTATIONS = (*CAPTURE_MUTATIONS, *REPLAY_MUTATIONS, *CHECK_MUTATIONS)
