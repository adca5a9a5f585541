"""End a run at its first wrong draft, where that is what must show a bug.

A bug that spoils drafts makes its requests take two or three times as many steps, and all that is
asked is whether any draft is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock


class WrongDraft(Exception):
    """Other drafts were accepted than the oracle says."""


class Watch:
    """Compares each verification with the oracle, once.

    :param steps: the verifications of each request, by its index as text; it grows meanwhile.
    """

    def __init__(self, requests: Any, steps: Mapping[str, list[Any]], rule: Any) -> None:
        from overlay.proof import oracle

        self._rule, self._steps = rule, steps
        self._compared = [0] * len(requests)
        self._texts = [
            [*request.prompt, *oracle.continuation(rule, list(request.prompt), request.tokens)]
            for request in requests
        ]

    def first_wrong(self) -> str | None:
        """What the first new verification shows that is not the oracle's; None if all are."""
        from overlay.proof import oracle

        for index, text in enumerate(self._texts):
            steps = self._steps.get(str(index), [])
            for step in steps[self._compared[index] :]:
                right = oracle.accepted(self._rule, text[: step.known], step.drafted)
                if step.accepted != right:
                    return (
                        f"request {index}, {step.known} tokens known, {step.drafted} drafted: "
                        f"expected {right} accepted, found {step.accepted}"
                    )
            self._compared[index] = len(steps)
        return None


@contextlib.contextmanager
def ending_there(
    engine: Any, requests: Any, steps: Mapping[str, list[Any]], rule: Any
) -> Iterator[None]:
    """Let a step of the engine, while inside, raise if it shows a wrong draft.

    :raises WrongDraft: from the engine's step.
    """
    stock, watch = engine.step, Watch(requests, steps, rule)

    def step() -> Any:
        outputs = stock()
        wrong = watch.first_wrong()
        if wrong is not None:
            raise WrongDraft(wrong)
        return outputs

    with mock.patch.object(engine, "step", step):
        yield
