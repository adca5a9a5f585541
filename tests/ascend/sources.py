"""Sites with the sources of a release of vllm-ascend and of the vLLM that it is for.

The sources come from the package index through the overlay's own cache of releases, which checks
their hashes.
"""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from overlay.package import VLLM, Package, package_named
from overlay.targets.release import resolve_release
from overlay.targets.release_archive import CachedRelease

ASCEND = package_named("vllm_ascend")
#: Both finals have the same drafter, and so have the release candidates of 0.30.
QUICK = ("0.23.0.post1", "0.30.0rc2")


#: 0.21.0rc1 imports what vLLM has since 0.22.0, and asks for 0.22.1 in twenty places.
_OTHER_VLLM = {"0.21.0rc1": "0.22.1"}


def vllm_of(release: str) -> str:
    """The release of vLLM that a release of vllm-ascend is for: as a rule the same number."""
    return _OTHER_VLLM.get(release, Version(release).base_version)


def unpack(package: Package, release: str, site: Path) -> None:
    """Write the modules of a release into `site`, with its metadata.

    :raises PackageIndexError: if it is not in the cache and cannot be fetched.
    """
    resolve_release(Version(release), release, package=package)
    archive = CachedRelease.open(release, package)
    for path in archive.paths():
        content = archive.read(path)
        if content is not None:
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(content)
    information = site / f"{package.name}-{release}.dist-info"
    information.mkdir()
    lines = ("Metadata-Version: 2.1", f"Name: {package.distribution}", f"Version: {release}", "")
    (information / "METADATA").write_text("\n".join(lines), encoding="utf-8")


def make_site(release: str, folder: Path) -> Path:
    """A site with both packages, as vllm-ascend is on an A2."""
    unpack(VLLM, vllm_of(release), folder)
    unpack(ASCEND, release, folder)
    # Its build writes this one.
    build = folder / "vllm_ascend" / "_build_info.py"
    build.write_text("__device_type__ = 'A2'\n", encoding="utf-8")
    return folder
