"""What the functions of the API share: the way to a command, and back from its report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from overlay.errors import OverlayError
from overlay.results.invocation import Invocation, absolute, current, invoked

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from overlay.commands.request import Request
    from overlay.report.base import Report

    #: A path or a name, as the functions of the API take them.
    Place: TypeAlias = str | Path

R = TypeVar("R", bound="Report")
Answer = TypeVar("Answer")
P = ParamSpec("P")


class PatchRefused(OverlayError):
    """Something has to be settled first, so nothing was written.

    :ivar report: what it is, and what to do.
    """

    exit_code = 1

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(report.verdict)


def request(
    python: Place | None,
    only: Collection[str],
    patches: Sequence[Place],
    require: Collection[str] = (),
    without: Collection[str] = (),
) -> Request:
    """Gather what every command takes, as texts, and warn of former ids."""
    from overlay.commands.request import Request
    from overlay.settings import current_ids

    def note(text: str) -> None:
        warnings.warn(text, FutureWarning, stacklevel=4)

    return Request(
        patches=tuple(str(folder) for folder in patches),
        features=current_ids(only, note),
        python=None if python is None else str(python),
        require=current_ids(require, note),
        without=current_ids(without, note),
    )


@contextmanager
def about(
    target: Place | None,
    python: Place | None,
    patches: Sequence[Place] = (),
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Iterator[None]:
    """Let the commands that messages name repeat what the caller named.

    :param patches: not repeated where the command line asks, which says itself what was named:
        folders of the environment and of a project's file need no repetition.
    """
    from overlay.commands.request import words_of

    outer = current()
    folders = tuple(absolute(each) for each in patches) if outer is None else outer.patches
    meant = words_of(as_name(target), as_name(python))
    options = (("--feature", only), ("--without", without))
    chosen = tuple(word for option, ids in options for id_ in ids for word in (option, id_))
    with invoked(Invocation(meant, folders, chosen)):
        yield


def on_a_target(question: Callable[P, Answer]) -> Callable[P, Answer]:
    """Make a function name its target and patches in every command that its messages name.

    :param question: takes ``target``, first or by name, and ``python`` and ``patches`` by name.
    """
    return _naming(question, ("patches",))


def on_chosen_features(question: Callable[P, Answer]) -> Callable[P, Answer]:
    """The same with the features that the caller chose.

    :param question: takes ``only`` and ``without`` by name, too.
    """
    return _naming(question, ("patches", "only", "without"))


def _naming(question: Callable[P, Answer], names: tuple[str, ...]) -> Callable[P, Answer]:

    @wraps(question)
    def asked(*args: P.args, **kwargs: P.kwargs) -> Answer:
        given: dict[str, Any] = dict(kwargs)
        target: Any = given["target"] if "target" in given else next(iter(args), None)
        others = {name: given[name] for name in names if name in given}
        with about(target, given.get("python"), **others):
            return question(*args, **kwargs)

    return asked


def as_name(target: Place | None) -> str | None:
    """TARGET as a command takes it."""
    return None if target is None else str(target)


def accepted(report: R) -> R:
    """The report of a command that had nothing to refuse.

    :raises PatchRefused: if its exit status is 1.
    """
    if report.exit == 1:
        raise PatchRefused(report)
    return report
