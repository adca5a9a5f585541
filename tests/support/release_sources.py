"""The Python sources of a release, laid out as an installed package.

They come from the package index through the overlay's own cache of releases, which checks their
hashes.
"""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from overlay.package import VLLM, Package, PackageRelease
from overlay.targets.releases import CachedRelease, archive_name, releases_folder, resolve_release


def archive_path(release: str) -> Path:
    """The archive of a release of vLLM in the cache, whether it is there or not."""
    return releases_folder().path / archive_name(release, VLLM)


def unpack(package: Package, release: str, site: Path, version: str | None = None) -> None:
    """Write the modules of a release into `site`, with its metadata.

    :param version: what the metadata says; the release by default.
    :raises PackageIndexError: if it is not in the cache and cannot be fetched.
    """
    resolve_release(PackageRelease(Version(release), package), release, None)
    archive = CachedRelease.open(release, package)
    for path in archive.paths():
        content = archive.read(path)
        if content is not None:
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(content)
    information = site / f"{package.name}-{release}.dist-info"
    information.mkdir()
    name = f"Name: {package.distribution}"
    lines = ("Metadata-Version: 2.1", name, f"Version: {version or release}", "")
    (information / "METADATA").write_text("\n".join(lines), encoding="utf-8")
