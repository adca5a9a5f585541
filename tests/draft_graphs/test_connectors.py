"""Which KV connectors act in each attention layer, asked of vLLM's own classes and of others.

Needs vLLM.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

# What is imported below needs both of them.
pytest.importorskip("torch")
pytest.importorskip("vllm")

from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("draft-graphs")

from vllm.distributed import kv_transfer
from vllm.distributed.kv_transfer.kv_connector import v1
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.spec_decode.draft_graphs import connectors

from tests.draft_graphs import test_facts
from tests.draft_graphs.drafters import Drafter
from tests.draft_graphs.reads_mutations import CONNECTOR_MUTATIONS
from tests.draft_graphs.test_builders import with_bug

#: Of vLLM 0.32.0, by reading: what a connector does between two layers, or hands to another object
#: that no one here knows. All others do nothing there.
ACTING = {
    *("ExampleConnector", "FlexKVConnectorV1", "LMCacheConnectorV1", "LMCacheConnectorV1Impl"),
    *("MoRIIOConnector", "MoRIIOConnectorWorker", "MultiConnector"),
    "UMBPStoreConnector",  # from 0.33
}


def connector(cls: type, **attributes: Any) -> Any:
    """A connector of a class, which has connected to nothing."""
    made: Any = object.__new__(cls)
    vars(made).update(attributes)
    return made


def several(*children: Any) -> Any:
    return connector(MultiConnector, _connectors=list(children))


class Waiting(OffloadingConnector):  # type: ignore[misc]  # mypy sees no vLLM
    """Somebody's, which acts before a layer alone."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.waited = layer_name


class Quiet(ExampleConnector):  # type: ignore[misc]  # mypy sees no vLLM
    """Somebody's, which has switched it off."""

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is saved here."""


def wrapped(method: Callable[..., None]) -> Callable[..., None]:
    """A method in which something happens beside what it wraps."""

    @functools.wraps(method)
    def wrapper(*args: Any) -> None:
        print(args)
        method(*args)

    return wrapper


def cases() -> dict[str, tuple[Any, tuple[str, ...]]]:
    """A connector, and the classes that act."""
    example, quiet = connector(ExampleConnector), connector(OffloadingConnector)
    watched = connector(OffloadingConnector)
    watched.save_kv_layer = wrapped(watched.save_kv_layer)
    layerwise = SimpleNamespace(use_layerwise=True)
    whole = SimpleNamespace(use_layerwise=False)
    saving = type("Saving", (LMCacheConnectorV1,), {"save_kv_layer": Waiting.wait_for_layer_load})
    return {
        "none": (None, ()),
        "saves": (example, ("ExampleConnector",)),
        "does nothing": (quiet, ()),
        "waits": (connector(Waiting), ("Waiting",)),
        "does nothing any more": (connector(Quiet), ()),
        "was changed in place": (watched, ("OffloadingConnector",)),
        "several": (several(quiet, quiet), ()),
        "one of several": (several(quiet, example), ("ExampleConnector",)),
        "nested": (several(quiet, several(several(connector(Waiting)))), ("Waiting",)),
        "two of several": (several(example, connector(Waiting)), ("ExampleConnector", "Waiting")),
        "LMCache by layers": (
            connector(LMCacheConnectorV1, _lmcache_engine=layerwise),
            ("LMCacheConnectorV1",),
        ),
        "LMCache": (connector(LMCacheConnectorV1, _lmcache_engine=whole), ()),
        "LMCache of an unknown kind": (
            connector(LMCacheConnectorV1, _lmcache_engine=object()),
            ("LMCacheConnectorV1",),
        ),
        "somebody's LMCache": (connector(saving, _lmcache_engine=whole), ("Saving",)),
    }


def wrong_answers(module: Any = connectors) -> list[str]:
    """The cases that are answered wrongly."""
    found = cases()
    return [name for name, (one, acts) in found.items() if module.acting_per_layer(one) != acts]


def test_a_connector_acts_where_its_methods_do_something() -> None:
    assert wrong_answers() == []


def classes() -> dict[str, type]:
    """All of this vLLM's that have the two methods."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(v1.__path__, f"{v1.__name__}."):
        try:
            loaded: ModuleType = importlib.import_module(module.name)
        except (ImportError, TypeError):  # what wants another package, or CUDA's headers
            continue
        found |= {
            name: cls
            for name, cls in vars(loaded).items()
            if isinstance(cls, type) and hasattr(cls, "save_kv_layer")
        }
    return found


def test_which_of_this_release_act_is_known() -> None:
    found = classes()
    assert {"ExampleConnector", "NixlConnector", "OffloadingConnector"} <= found.keys()
    acting = {
        name
        for name, cls in found.items()
        if not all(
            connectors._does_nothing(getattr(cls, each, print)) for each in connectors.METHODS
        )
        and issubclass(cls, KVConnectorBase_V1)
    }
    assert acting <= ACTING
    assert "ExampleConnector" in acting


@pytest.mark.parametrize("mutation", CONNECTOR_MUTATIONS, ids=lambda each: each.name)
def test_mutation_is_caught(mutation: Any) -> None:
    assert wrong_answers(with_bug(connectors, mutation)) != []


def test_it_is_a_fact_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = test_facts.make_proposer()
    for one, expected in (
        (connector(ExampleConnector), {"per_layer_connectors": ("ExampleConnector",)}),
        (connector(OffloadingConnector), {}),
    ):
        monkeypatch.setattr(kv_transfer, "has_kv_transfer_group", lambda: True)
        monkeypatch.setattr(kv_transfer, "get_kv_transfer_group", lambda one=one: one)
        assert test_facts.changed(proposer) == expected


@pytest.mark.usefixtures("one_rank")
def test_no_graph_is_captured_beside_one_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    one = several(connector(OffloadingConnector), connector(ExampleConnector))
    monkeypatch.setattr(connectors, "current", lambda: one)
    drafter = Drafter()
    drafter.capture()
    assert drafter.keys == []
    assert drafter.propose() is None
    assert drafter.later_steps() is None
    (line,) = log
    assert "the KV connector ExampleConnector saves or loads in each attention layer" in line


@pytest.mark.usefixtures("one_rank")
def test_one_that_comes_behind_the_capture_leaves_batches_to_upstream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = Drafter()
    drafter.capture()
    assert drafter.propose() is not None
    monkeypatch.setattr(connectors, "current", lambda: connector(ExampleConnector))
    assert drafter.propose() is None
    assert drafter.later_steps() is None


def test_the_file_of_releases_is_named() -> None:
    """vLLM's decorator is what calls the two methods."""
    source = Path(kv_transfer.__file__).parents[2]
    text = (source / "model_executor/layers/attention/kv_transfer_utils.py").read_text("utf-8")
    for name in connectors.METHODS:
        assert f"connector.{name}(" in text
