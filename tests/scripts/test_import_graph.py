"""The floor plan of ``overlay/``: few rooms on few layers, no circles, nothing that points up."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import import_graph


def test_the_rooms_stand_on_few_layers_without_circles() -> None:
    plan = import_graph.read()
    assert plan.room_cycles == []
    assert plan.file_cycles == []
    assert plan.upward == []
    assert len(plan.arrows) <= 20, sorted(plan.arrows)
    assert plan.layers <= 9, plan.rooms


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "overlay"
    for name, text in {
        "__init__.py": "",
        "low.py": "",
        "room/__init__.py": "",
        "room/a.py": "from overlay.low import x\n",
        "room/b.py": "def f():\n    import overlay.room.a\n",
        "top.py": "from overlay.room import b\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    return folder


def test_a_layer_is_the_longest_way_down(package: Path) -> None:
    plan = import_graph.read(package)
    assert plan.rooms == {"low": 0, "room": 1, "top": 2}
    assert (plan.room_cycles, plan.file_cycles, plan.upward) == ([], [], [])


def test_a_circle_is_named_also_where_it_goes_through_a_function(package: Path) -> None:
    (package / "room/a.py").write_text("def f():\n    from overlay.room.b import g\n")
    assert import_graph.read(package).file_cycles == [["overlay.room.a", "overlay.room.b"]]
    (package / "low.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import overlay.top\n"
    )
    (package / "room/a.py").write_text("import overlay.low\n")
    assert import_graph.read(package).room_cycles == [["low", "room", "top"]]
