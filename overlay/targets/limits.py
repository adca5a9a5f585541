"""Limits of time for what comes over a network: all of a request counts, not each wait for a byte.

``requests`` and ``urllib3`` limit only the silence between two bytes, so a server that sends one
byte a second, in the headers, in the body, in redirects or in one answer after another, would be
waited for without end.  A ``Clock`` cuts the connections off instead.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import requests
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError


class Clock:
    """The limit of time of one task, such as fetching a release, and of each part of it.

    :param seconds: the limit of the whole, from now on.
    :ivar limit: seconds that the part had which runs now, or ran last.
    """

    def __init__(self, seconds: float) -> None:
        self._end = self._part = time.monotonic() + seconds
        self.limit = seconds
        self._watched: list[socket.socket] = []

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._part

    @contextmanager
    def running(self, seconds: float) -> Iterator[None]:
        """Limit a part: when its time is up, each connection that it uses is cut off.

        :param seconds: for the part; less where less is left of the whole.
        """
        now = time.monotonic()
        self._part, self.limit = min(self._end, now + seconds), seconds
        timer = threading.Timer(max(0.0, self._part - now), self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._watched.clear()

    def watch(self, connected: socket.socket | None) -> None:
        """Have a socket cut off when the time is up.

        :raises ConnectTimeoutError: if it is already.
        """
        if connected is not None:
            self._watched.append(connected)
        if self.over:
            raise ConnectTimeoutError(f"the {self.limit:g} seconds of the request are over")

    def _cut(self) -> None:
        for connected in list(self._watched):
            with suppress(OSError):  # closed, or TLS has put another in its place
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


def pools(clock: Clock) -> dict[str, type[HTTPConnectionPool]]:
    """Pools whose connections a clock watches, by scheme.

    It has to know the sockets: a connection forgets its own where the answer has no length.
    """

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            clock.watch(None)
            connection = super()._new_conn()
            clock.watch(connection)  # a proxy may drip before there is TLS
            return connection

        def request(self, *words: Any, **options: Any) -> None:
            clock.watch(self.sock)
            super().request(*words, **options)

    class Secure(Plain, HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            clock.watch(self.sock)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


class Carrier(requests.Session):
    """A ``requests`` session that reads nothing of a redirect but its headers.

    ``requests`` reads the body as well, all of it, whatever its size.
    """

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where an answer leads to; its connection is closed."""
        target = super().get_redirect_target(resp)
        if target is not None:
            resp.close()
            resp._content = b""  # as if it had been read
            vars(resp)["_content_consumed"] = True
        return target
