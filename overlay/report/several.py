"""Verdicts of commands that treat several packages, made from those on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlay.report.codes import Code, Exit, Verdict
from overlay.report.words import enumeration, vllm

if TYPE_CHECKING:
    from overlay.report.model import TargetReport


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a command on several packages, from that on each.

    The sentences are joined.  The code is the one that all have; of those that need the user, where
    any does.
    """
    first, *others = verdicts
    if not others:
        return first
    needy = [verdict for verdict in verdicts if verdict.code.exit is not Exit.OK]
    codes = {verdict.code for verdict in needy or verdicts}
    code = codes.pop() if len(codes) == 1 else Code.NEEDS_ATTENTION if needy else Code.MIXED
    texts = [first.text.removesuffix(".")]
    texts += [
        f"{verdict.text[0].lower()}{verdict.text[1:].removesuffix('.')}" for verdict in others
    ]
    return Verdict(code, f"{'; '.join(texts)}.")


def neither(verdict: Verdict, others: Sequence[TargetReport], done: str = "written to") -> Verdict:
    """The verdict of a refusal, with the other packages, to which nothing was done either.

    :param others: them; :param done: what was not done, such as ``written to``.
    """
    if not others:
        return verdict
    names = enumeration([vllm(target) for target in others])
    text = f"{verdict.text.removesuffix('.')}; nothing was {done} {names} either."
    return Verdict(verdict.code, text)
