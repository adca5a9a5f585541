"""A worker of one of two engines that P2pNcclConnector joins: a variable has the other's address.

vLLM's proxy names both addresses in each request's id; the requests here have numbers.
"""

from __future__ import annotations

import os

from tests.draft_graphs.weight_events import WeightEvents
from tests.gpu.prefill_decode import PEER


class PeerEvents(WeightEvents):
    """The events of any worker; importing this tells the connector its peer."""


def _join() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.p2p import p2p_nccl_connector

    host, port = os.environ[PEER].split(":")
    connector = p2p_nccl_connector.P2pNcclConnector
    connector.parse_request_id = staticmethod(lambda *_: (host, int(port)))


_join()
