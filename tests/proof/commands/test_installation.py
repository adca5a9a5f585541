"""The copy of the release's own files beside a patched installation."""

from __future__ import annotations

from pathlib import Path

from overlay.proof.commands.installation import make_stock_copy
from tests.support.cli import ADDED, PROPOSER, Cli


def test_the_copy_is_the_release_and_the_installation_stays(
    cli: Cli, site: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in (site / "vllm").rglob("*") if path.is_file()}
    assert cli("apply", site).exit == 0
    patched = {path: path.read_bytes() for path in (site / "vllm").rglob("*") if path.is_file()}
    cache = site / Path(PROPOSER).parent / "__pycache__"
    cache.mkdir(exist_ok=True)
    stale = cache / f"{Path(PROPOSER).stem}.cpython-311.pyc"
    stale.write_bytes(b"stale")
    folder = tmp_path / "stock"
    folder.mkdir()
    assert make_stock_copy(site, folder)
    for path, data in before.items():
        assert (folder / path.relative_to(site)).read_bytes() == data
    assert not (folder / ADDED).exists()
    assert not (
        folder / cache.relative_to(site) / f"{Path(PROPOSER).stem}.cpython-311.pyc"
    ).exists()
    assert patched == {path: path.read_bytes() for path in patched}


def test_where_nothing_is_applied_nothing_is_laid_out(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stock"
    folder.mkdir()
    assert not make_stock_copy(site, folder)
    assert not [*folder.iterdir()]
