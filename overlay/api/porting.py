"""What the command line asks for to port features; none of it is a promise.

Each function imports what it needs when it is called, so that ``--help`` stays fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from overlay.api.calls import request

if TYPE_CHECKING:
    from overlay.api.calls import Place
    from overlay.report.ported import OpenFile, PortReport
    from overlay.targets.target import Progress


#: The types are here for annotations: the command line imports nothing but the API.
__all__ = ["OpenFile", "PortReport", "ask_port", "port", "port_session", "show_port"]


def port(
    ids: Sequence[str],
    releases: str,
    *,
    patches: Sequence[Place] = (),
    write: bool = False,
    accept_merged: bool = False,
    progress: Progress | None = None,
) -> PortReport:
    """What ``overlay port`` does: features carried to releases; no ids mean all features."""
    from overlay.commands.port import port as command

    return command(
        request(None, ids, patches)._replace(named_as="ID"),
        releases,
        write=write,
        accept_merged=accept_merged,
        progress=progress,
    )


def port_session(
    action: str,
    folder: str | None = None,
    *,
    patches: Sequence[Place] = (),
    id_: str = "",
    command: str | None = None,
    progress: Progress | None = None,
) -> PortReport:
    """What ``overlay port`` does with an open session.

    :param action: a value of ``commands.port_session.SessionAction``, such as ``continue``.
    :param folder: the session; default: the only one in the working folder.
    :param id_: the feature to retire or skip; :param command: the resolver.
    :raises ValueError: if the action is unknown.
    """
    from overlay.commands import port_session as commands

    asked, chosen = request(None, (), patches), commands.SessionAction(action)
    if chosen is commands.SessionAction.ABORT:
        return commands.abort(folder)
    if chosen is commands.SessionAction.RETIRE:
        return commands.retire(asked, folder, id_, progress)
    if chosen is commands.SessionAction.SKIP:
        return commands.skip(asked, folder, id_, progress)
    if chosen is commands.SessionAction.CONTINUE:
        return commands.proceed(asked, folder, progress)
    if chosen is commands.SessionAction.SHOW:
        return commands.show(asked, folder, progress)
    return commands.resolve(asked, folder, command, progress)


def ask_port(
    report: PortReport, question: Callable[[OpenFile], str], patches: Sequence[Place] = ()
) -> PortReport:
    """Ask a person about each file of a port's session, and do what the answers say.

    :param question: shows a file and gives a value of ``commands.port_session.Key``, such as ``k``.
    :raises ValueError: if it gives another one.
    """
    from overlay.commands.port_session import Key, ask

    return ask(request(None, (), patches), report, lambda file: Key(question(file)))


def show_port(file: OpenFile, stream: TextIO) -> None:
    """Write what waits in one file of a port's session, for people."""
    from overlay.report.lines import paint
    from overlay.report.ported import open_lines

    paint(open_lines(file), stream)
