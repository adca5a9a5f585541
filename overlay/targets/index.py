"""Read what a package index offers (PEP 503, PEP 691, folders), and choose a file of a release."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import (
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from overlay.errors import PackageIndexError, without_secrets
from overlay.package import VLLM, Package, PackageRelease, same_release
from overlay.targets.http import IndexSession, NotFoundError, local_path
from overlay.untrusted import parse_json

_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)

_PAGE_LIMIT_BYTES = 64 * 1024 * 1024

_HASHES = ("sha256", "sha384", "sha512")


@dataclass(frozen=True)
class Candidate:
    """A file that an index offers.

    :ivar hash: algorithm and hex digest, ``None`` where the index gives none worth checking.
    :ivar index: the page that offers it, without password.
    """

    filename: str
    url: str
    version: Version
    is_sdist: bool
    hash: tuple[str, str] | None
    yanked: bool
    index: str


@dataclass(frozen=True)
class OfferedRelease:
    """A release that an index offers.

    :ivar version: without a local label, with at least three numbers.
    :ivar yanked: whether every file of it was yanked, so that pip installs it only by its name.
    """

    version: Version
    yanked: bool = False


@dataclass(frozen=True)
class Listing:
    """Everything on offer, in the order of the indexes, and what went wrong on the way.

    :ivar pages: those that were asked, without passwords.
    :ivar problems: why some of them gave nothing, other than having no such project.
    """

    candidates: tuple[Candidate, ...]
    pages: tuple[str, ...]
    problems: tuple[str, ...]

    def versions(self) -> list[Version]:
        """The versions on offer, oldest first."""
        return sorted({candidate.version for candidate in self.candidates})

    def releases(self) -> tuple[OfferedRelease, ...]:
        """The releases on offer, oldest first, each once whatever local labels its files have."""
        files: dict[Version, list[bool]] = {}
        for candidate in self.candidates:
            release = same_release(Version(candidate.version.public))
            files.setdefault(release, []).append(candidate.yanked)
        return tuple(OfferedRelease(each, all(files[each])) for each in sorted(files))

    def of(self, version: Version) -> list[Candidate]:
        """The files of one release, the one to take first.

        An sdist comes before a wheel, a file with a hash before one without, the exact version
        before one with a local label, and wheels of the commonest platform before others.
        """
        return sorted(
            (offer for offer in self.candidates if _matches(offer.version, version)),
            key=lambda offer: (
                not offer.is_sdist,
                offer.yanked,
                offer.version.local is not None,
                offer.hash is None,
                "x86_64" not in offer.filename,
            ),
        )


def listing(session: IndexSession, package: Package) -> Listing:
    """Ask every configured index and link page for the files of a package.

    An index without the project, or a folder that does not exist, is passed over, as pip does.

    :raises PackageIndexError: if nothing is offered anywhere.
    """
    project = package.distribution
    pages = [f"{url.rstrip('/')}/{project}/" for url in session.config.indexes]
    pages += session.config.find_links
    candidates: list[Candidate] = []
    problems: list[str] = []
    for url in pages:
        try:
            candidates += _ask(session, url, project)
        except NotFoundError:
            continue
        except PackageIndexError as error:
            problems.append(str(error))
    places = tuple(without_secrets(url) for url in pages)
    if not candidates:
        sentences = (text if text.endswith(".") else f"{text}." for text in dict.fromkeys(problems))
        # What could not be reached says itself what to do about it.
        why = " ".join(sentences) or (
            "None of them has it: check pip's index settings (pip config list)."
        )
        raise PackageIndexError(
            f"expected files of {project} on {_places(places)}. {why} Or name a folder, a wheel or "
            "an sdist instead of a release"
        )
    return Listing(tuple(candidates), places, tuple(dict.fromkeys(problems)))


def unknown_release(release: PackageRelease, offers: Listing) -> PackageIndexError:
    """The error for a release that no index offers; names its neighbours."""
    versions = [
        version
        for version in offers.versions()
        if not version.is_prerelease or release.package.has_candidates
    ]
    below = [str(version) for version in versions if version < release.version][-3:]
    above = [str(version) for version in versions if version > release.version][:3]
    near = ", ".join([*below, *above]) or "none"
    problems = "".join(f" {problem}" for problem in offers.problems)
    return PackageIndexError(
        f"{release}: expected an sdist or a wheel of it on "
        f"{_places(offers.pages)}; there is none. Releases near it: {near}."
        f"{_same_digits(release.version, versions)}{problems}"
    )


def _same_digits(version: Version, versions: Iterable[Version]) -> str:
    """The newest version with the same digits in another order, as a sentence; empty for none."""
    digits = sorted(str(version).replace(".", ""))
    same = [each for each in versions if sorted(str(each).replace(".", "")) == digits]
    return f" Did you mean {same[-1]}?" if same else ""


def parse_page(
    content: bytes, kind: str, url: str, project: str = VLLM.distribution
) -> list[Candidate]:
    """The files of a project on an index page; other links are passed over.

    :param kind: the page's content type; :param url: where it came from, for relative links.
    :raises PackageIndexError: if it cannot be read, or is JSON and not as PEP 691 says.
    """
    index = without_secrets(url)
    if "json" in kind.lower():
        links = _json_links(content, url)
        return [file for link in links if (file := _candidate(*link, index, project))]
    parser = _Links(url)
    try:
        parser.feed(content.decode("utf-8", "replace"))
    except (AssertionError, ValueError, RecursionError) as error:  # the first one for "<![<!["
        raise PackageIndexError(
            f"{index}: expected a page of links (PEP 503), it cannot be read: {error}. Check the "
            "index URL in pip's configuration"
        ) from error
    return [file for link in parser.links if (file := _candidate(*link, index, project))]


def _matches(offer: Version, release: Version) -> bool:
    if release.local is not None:
        return offer == release
    return Version(offer.public) == Version(release.public)  # 0.26 is 0.26.0


def _places(pages: Iterable[str]) -> str:
    return ", ".join(pages) or "a package index (none is configured: pip's no-index is set)"


def _ask(session: IndexSession, url: str, project: str) -> list[Candidate]:
    path = local_path(url)
    if path is not None:
        try:
            links = _folder_links(path)
        except OSError as error:
            raise PackageIndexError(f"{url}: cannot be listed: {error.strerror}") from error
        if links is not None:
            return [file for link in links if (file := _candidate(*link, url, project))]
        url = (path / "index.html" if path.is_dir() else path).as_uri()
    return parse_page(*session.page(url, _ACCEPT, _PAGE_LIMIT_BYTES), project)


def _folder_links(path: Path) -> list[_Link] | None:
    """The files in a folder, ``None`` where it is a page, or a folder that has one."""
    if not path.is_dir() or (path / "index.html").is_file():
        return None
    return [(entry.as_uri(), entry.name, None, False) for entry in sorted(path.iterdir())]


_Link = tuple[str, str, "tuple[str, str] | None", bool]


def _candidate(
    url: str,
    filename: str,
    digest: tuple[str, str] | None,
    yanked: bool,
    index: str,
    project: str,
) -> Candidate | None:
    try:
        if filename.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(filename)
        elif filename.endswith(".tar.gz"):
            name, version = parse_sdist_filename(filename)
        else:
            return None
    except ValueError:  # also of numbers with thousands of digits
        return None
    if name != canonicalize_name(project):
        return None
    return Candidate(filename, url, version, not filename.endswith(".whl"), digest, yanked, index)


def _json_links(content: bytes, url: str) -> list[_Link]:
    try:
        return [_json_link(file, url) for file in parse_json(content)["files"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackageIndexError(
            f"{without_secrets(url)}: expected a JSON page of a simple index (PEP 691), it cannot "
            f"be read: {error!r}. Check the index URL in pip's configuration"
        ) from error


def _json_link(file: dict[str, Any], url: str) -> _Link:
    hashes = {str(name).lower(): str(value).lower() for name, value in file["hashes"].items()}
    digest = next(((name, hashes[name]) for name in _HASHES if name in hashes), None)
    yanked = file.get("yanked", False)
    return urljoin(url, file["url"]), str(file["filename"]), digest, yanked is not False


class _Links(HTMLParser):
    """Collects the links of a PEP 503 page."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._base, self._has_base = url, False
        self.links: list[_Link] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        href = attributes.get("href")
        if not href or tag not in ("a", "base"):
            return
        try:
            url, fragment = urldefrag(urljoin(self._base, href))
        except ValueError:
            return  # "http://[::1" leads nowhere
        if tag == "base":
            # The first counts, as in HTML: each of thousands would make the address longer.
            self._base, self._has_base = (self._base if self._has_base else url), True
            return
        name, _, value = fragment.partition("=")
        digest = (name.lower(), value.lower()) if name.lower() in _HASHES and value else None
        filename = Path(unquote(urlsplit(url).path)).name
        self.links.append((url, filename, digest, "data-yanked" in attributes))
