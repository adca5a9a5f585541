"""The files of ``deploy/``: linted, and their build steps carried out in a plain folder.

No builder of images is needed: each ``RUN`` is a shell command, and runs here with the same files,
variables and order, in a folder that takes the place of the image's root.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay._features.vllm_defaults import ONLY_V2, Runs, runs, settings
from overlay.cli.run import run
from tests.in_memory.installed import copy_tree
from tests.support.markdown import ROOT
from tests.test_all_releases import of_patches, unpack

DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile*"))
MANIFESTS = sorted(DEPLOY.glob("kubernetes*.yaml"))
RELEASE = "0.26.0"
#: The folders of the image that steps name, by their absolute paths.
FOLDERS = ("/src", "/tmp")
#: What says where vLLM, Triton, FlashInfer, PyTorch and the overlay write.
PLACES = (
    *("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"),
    *("FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR"),
)

each_dockerfile = pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
each_manifest = pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)


class Step(NamedTuple):
    """One instruction of a Dockerfile."""

    name: str
    text: str


def steps(file: Path) -> Iterator[Step]:
    """The instructions in order, each as one line."""
    lines = (line for line in file.read_text().splitlines() if not line.lstrip().startswith("#"))
    text = "\n".join(lines)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield Step(name, rest.strip())


def containers(file: Path) -> Iterator[dict[str, Any]]:
    """Every container of a manifest's pods."""
    for document in yaml.safe_load_all(file.read_text()):
        pod = document["spec"].get("template", {}).get("spec", {})
        yield from pod.get("initContainers", [])
        yield from pod.get("containers", [])


# Lint


@each_dockerfile
def test_a_dockerfile_follows_the_rules(file: Path) -> None:
    """Those of hadolint that matter here; it passes with no finding, too."""
    found = list(steps(file))
    assert [step.name for step in found if step.name in ("ARG", "FROM")][:2] == ["ARG", "FROM"]
    (base,) = [step.text for step in found if step.name == "FROM"]
    assert base == "vllm/vllm-openai:${VLLM}"
    assert "ARG VLLM=v" in file.read_text(), "the base has a version, and it is not `latest`"
    names = [step.name for step in found]
    assert set(names) <= {"ARG", "FROM", "COPY", "RUN", "ENV", "USER", "HEALTHCHECK"}
    assert all(one != other or one != "RUN" for one, other in itertools.pairwise(names))
    for step in found:
        if step.name == "RUN" and "pip install" in step.text:
            assert "--no-cache-dir" in step.text
        if step.name == "RUN":
            assert ";" not in step.text, "a failing command stops the build"
            assert "sudo" not in step.text
    (health,) = [step.text for step in found if step.name == "HEALTHCHECK"]
    command = json.loads(health.partition("CMD ")[2])
    assert command == ["overlay", "status", "--live", "--require", "draft-graphs"]
    assert names[-1] == "HEALTHCHECK", "vLLM's own entry point serves"


def test_the_compose_file_builds_the_files_that_there_are() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"applied", "auto-apply"}
    for service in services.values():
        build = service["build"]
        file = ROOT / build["dockerfile"]
        assert file in DOCKERFILES
        assert (DEPLOY / build["context"]).resolve() == ROOT
        arguments = {step.text.partition("=")[0] for step in steps(file) if step.name == "ARG"}
        assert set(build["args"]) <= arguments
        (speculative,) = [
            part.partition("=")[2]
            for part in service["command"]
            if part.startswith("--speculative-config=")
        ]
        json.loads(re.sub(r"\$\{[^}]*\}", "x", speculative))


@each_manifest
def test_a_manifest_is_whole(file: Path) -> None:
    """`kubernetes-validate --strict` passes, too."""
    documents = list(yaml.safe_load_all(file.read_text()))
    for document in documents:
        assert document["apiVersion"] == ("v1" if document["kind"] == "Service" else "apps/v1")
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for document in documents
        if "template" in document["spec"]
    ]
    for document in documents:
        spec = document["spec"]
        selector = spec["selector"].get("matchLabels", spec["selector"])
        assert any(selector.items() <= each.items() for each in labels), document["metadata"]
        if "template" in spec:
            pod = spec["template"]["spec"]
            volumes = {volume["name"] for volume in pod["volumes"]}
            mounts = [m["name"] for c in pod["containers"] for m in c["volumeMounts"]]
            assert set(mounts) <= volumes
    for container in containers(file):
        assert ":" in container["image"]
        assert not container["image"].endswith(":latest")
        assert container["resources"]["limits"]


@each_manifest
def test_probes_are_commands_that_end_with_1_where_nothing_is_served(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay._processes.live.processes", lambda: ())
    probes = [
        container[kind]["exec"]["command"]
        for container in containers(file)
        for kind in ("startupProbe", "readinessProbe", "livenessProbe")
        if "exec" in container.get(kind, {})
    ]
    assert probes
    for program, *words in probes:
        assert program == "overlay"
        assert words == ["status", "--live", "--require", "draft-graphs"]
        assert run(words) == 1
        assert "no process of vLLM has loaded a model" in capsys.readouterr().out


@each_manifest
def test_no_probe_of_the_overlay_ends_a_pod(file: Path) -> None:
    """Withdrawn graphs take a pod out of the service; to start it again would not help."""
    for container in containers(file):
        assert "exec" not in container.get("livenessProbe", {})


# What probes require, and what the release runs


def variables(file: Path) -> dict[str, str]:
    """What a Dockerfile sets."""
    pairs = [pair for step in steps(file) if step.name == "ENV" for pair in shlex.split(step.text)]
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


class Served(NamedTuple):
    """A container: its image, variables (the image's, too), arguments and where it may write."""

    image: str
    environment: dict[str, str]
    words: str
    read_only: bool
    writable: tuple[str, ...]
    requires: bool


def served(file: Path) -> Iterator[Served]:
    """Every container that serves, by what a deployed file says itself."""
    if file in MANIFESTS:
        for container in containers(file):
            if "env" in container:
                own = {each["name"]: each["value"] for each in container["env"]}
                yield Served(
                    container["image"],
                    {**variables(DEPLOY / "Dockerfile"), **own},
                    json.dumps(container["args"]),
                    container.get("securityContext", {}).get("readOnlyRootFilesystem", False),
                    tuple(m["mountPath"] for m in container["volumeMounts"] if "readOnly" not in m),
                    "draft-graphs" in json.dumps(container),
                )
        return
    for service in yaml.safe_load(file.read_text())["services"].values():
        yield Served(
            re.sub(r"\$\{VLLM:-(.*?)\}", r"\1", service["image"]),
            {**variables(ROOT / service["build"]["dockerfile"]), **service["environment"]},
            json.dumps(service["command"]),
            service.get("read_only", False),
            tuple(entry.partition(":")[0] for entry in service.get("tmpfs", [])),
            True,  # the probes of the images
        )


each_served = pytest.mark.parametrize(
    "file", [*MANIFESTS, DEPLOY / "compose.yaml"], ids=lambda file: file.name
)


def expect_runs(release: str, environment: dict[str, str]) -> None:
    """What requires draft-graphs has to serve on the model runner that draft-graphs patches."""
    (feature,) = [each for each in load([shipped_folder()]) if each.id == "draft-graphs"]
    assert feature.model_runner is not None
    version = Version(release)
    assert runs(feature.model_runner, version, environment) is Runs.YES
    assert runs(feature.model_runner, version, {}) is not Runs.YES, "the variable is needed"


@each_dockerfile
def test_an_image_asks_for_the_model_runner_that_its_probe_needs(file: Path) -> None:
    (release,) = re.findall(r"^ARG VLLM=v(\S+)$", file.read_text(), re.MULTILINE)
    expect_runs(release, variables(file))


@each_served
def test_what_is_deployed_asks_for_the_model_runner_that_its_probes_need(file: Path) -> None:
    for each in served(file):
        assert each.requires
        release = each.image.partition(":v")[2]
        expect_runs(release, each.environment)
        refused = [row.text for row in settings(Version(release), ONLY_V2)]
        assert not any("eagle3" in text for text in refused)
        assert "eagle3" in each.words or "ray start --block" in each.words


@each_served
def test_what_is_written_is_below_a_folder_that_can_be_written_to(file: Path) -> None:
    for each in served(file):
        assert each.read_only
        assert "/tmp" in each.writable
        for name in PLACES:
            assert each.environment[name].startswith("/tmp/"), name
        assert "OVERLAY_CACHE" not in each.environment, "it is below XDG_CACHE_HOME"


def test_nothing_runs_as_root() -> None:
    for file in DOCKERFILES:
        assert [step.text for step in steps(file) if step.name == "USER"] == ["1000:0"]
    for service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values():
        assert service["user"] == "${OVERLAY_USER:-1000:0}"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for file in MANIFESTS:
        for document in yaml.safe_load_all(file.read_text()):
            if pod := document["spec"].get("template"):
                context = pod["spec"]["securityContext"]
                assert context["runAsNonRoot"] is True
                assert context["runAsUser"] == 1000
        for container in containers(file):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_compiled_code_may_run_from_the_memory_that_docker_mounts() -> None:
    """Docker mounts a tmpfs as noexec, where Triton's modules could not be loaded."""
    for service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values():
        assert service["tmpfs"] == ["/tmp:exec,mode=1777"]


@each_dockerfile
def test_the_script_that_serves_read_only_sets_what_the_images_set(file: Path) -> None:
    """It takes root and an engine, so nobody runs it here: ``scripts/serve_read_only.sh``."""
    text = (ROOT / "scripts/serve_read_only.sh").read_text()
    environment = variables(file)
    for name in ("USER", *PLACES):
        assert f" {name}={environment[name]}" in text


def test_one_release_of_vllm_is_named_everywhere() -> None:
    page = (ROOT / "docs/containers.md").read_text().partition("## What was tried")[0]
    texts = [page, *(file.read_text() for file in DEPLOY.iterdir() if file.suffix != ".json")]
    releases = {release for text in texts for release in re.findall(r"v(\d+\.\d+\.\d+)", text)}
    assert releases == {RELEASE}


def test_the_images_that_are_deployed_are_those_that_the_dockerfiles_build() -> None:
    built = {
        tag for file in DOCKERFILES for tag in re.findall(r"-t (vllm-overlay\S*)", file.read_text())
    }
    deployed = {
        each.image for file in [*MANIFESTS, DEPLOY / "compose.yaml"] for each in served(file)
    }
    deployed |= {each["image"] for file in MANIFESTS for each in containers(file)}
    assert deployed == built
    assert all(
        tag in (ROOT / "docs/containers.md").read_text() for tag in built if "auto" not in tag
    )


# Build


class Image:
    """A folder in the place of an image's root, with a pristine vLLM in its Python."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        environment = folder / "python"
        venv.create(environment, symlinks=True)
        scheme = {"base": str(environment), "platbase": str(environment)}
        self.site = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
        # pip, setuptools and what the overlay needs, as an image's own index would give them.
        own = sysconfig.get_path("purelib")
        (self.site / "tools.pth").write_text(f"{own}\n")
        unpack(RELEASE, self.site, of_patches())
        metadata = self.site / f"vllm-{RELEASE}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {RELEASE}\n"
        )
        self.variables = {
            **{name: value for name, value in os.environ.items() if "OVERLAY" not in name},
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_IGNORE_INSTALLED": "1",
        }
        self.variables.pop("PYTHONPATH", None)
        self.ran: list[str] = []

    def inside(self, text: str) -> str:
        """A text with the image's folders below the root of this one."""
        for folder in FOLDERS:
            text = re.sub(rf"(?<![\w./]){re.escape(folder)}\b", f"{self.root}{folder}", text)
        return text

    def serve(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command where all but ``/tmp`` is read-only, if the kernel lets this user."""
        memory = self.root / "tmp"
        script = (
            'mount --make-rprivate / && mount -t tmpfs tmpfs "$0" && mount -o remount,bind,ro / '
            '&& ! touch "$0/../file" 2>/dev/null && exec "$@"'
        )
        namespace = ["unshare", "--map-root-user", "--mount"]
        allowed = (
            shutil.which("unshare")
            and not subprocess.run(
                [*namespace, "sh", "-c", script, str(memory), "true"],
                capture_output=True,
                check=False,
            ).returncode
        )
        within = [*namespace, "sh", "-c", script, str(memory)] if allowed else []
        return subprocess.run(
            [*within, *command],
            env={**self.variables, "TMPDIR": str(memory)},
            cwd=self.root,
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )

    def carry_out(self, step: Step) -> subprocess.CompletedProcess[str] | None:
        """One instruction, as a builder would."""
        if step.name in ("ARG", "ENV"):
            for pair in shlex.split(step.text):
                name, _, value = pair.partition("=")
                self.variables[name] = self.inside(value)
        elif step.name == "COPY":
            source, place = step.text.split()
            assert source == "."
            left_out = {
                line.strip("*/")
                for line in (ROOT / ".dockerignore").read_text().splitlines()
                if not line.startswith("#")
            }
            goal = Path(self.inside(place))
            copy_tree(goal, lambda name: name.split("/")[0] not in left_out)
        elif step.name == "RUN":
            self.ran.append(step.text)
            return subprocess.run(
                ["/bin/sh", "-c", self.inside(step.text)],
                env=self.variables,
                cwd=self.root,
                text=True,
                capture_output=True,
                check=False,
                timeout=300,
            )
        return None


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Dockerfile", pytest.param("Dockerfile.auto-apply", marks=pytest.mark.thorough)]
)
def test_every_step_runs_on_a_pristine_vllm(name: str, tmp_path: Path) -> None:
    image = Image(tmp_path)
    (image.root / "tmp").mkdir(parents=True)
    for step in steps(DEPLOY / name):
        ended = image.carry_out(step)
        assert ended is None or ended.returncode == 0, ended.stdout + ended.stderr
    assert image.ran
    assert (Path(image.variables["PATH"].split(os.pathsep)[0]) / "overlay").is_file()
    assert not Path(image.inside("/src/vllm-overlay")).exists()
    applied = (image.site / ".vllm-overlay/ledger.json").is_file()
    assert applied == (name == "Dockerfile")
    ended = image.serve("overlay", "status", "--require", "draft-graphs")
    assert ended.returncode == (0 if applied else 1), ended.stdout + ended.stderr
    ended = image.serve("overlay", "status", "--live", "--require", "draft-graphs")
    assert ended.returncode == 1
    assert "no process of vLLM has loaded a model" in ended.stdout
    if applied:
        # A release without the feature stops the build.
        refused = image.carry_out(Step("RUN", "overlay apply --require active-lora-graphs-not"))
        assert refused is not None
        assert refused.returncode == 2
