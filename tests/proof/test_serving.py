"""The port of a server is nobody else's between its choice and the server."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from overlay.proof.serving import NotServed, reserve_port


def test_a_reserve_port_is_free_for_a_server_alone() -> None:
    with closing(reserve_port(None)) as port:
        place = port.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(place)  # whoever is handed a port by chance does not reuse one
        with socket.create_server(place), pytest.raises(NotServed, match=f"--port {place[1]}: "):
            reserve_port(place[1])
        with socket.create_server(place) as server, socket.create_connection(place):
            server.accept()[0].close()
