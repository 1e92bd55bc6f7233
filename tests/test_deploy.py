"""What deploy/ starts can be started: its commands are ours, with a configuration that is valid."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement

from roamcast.cli import build_app, run
from roamcast.config.sections import Quotas
from roamcast.net.open_files import OWN_FILES

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
UNIT = DEPLOY / "roamcast.service"


def commands_of(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_starts_a_broker_with_a_configuration(tmp_path: Path) -> None:
    (start,), (check,) = commands_of("ExecStart"), commands_of("ExecStartPre")
    assert check == f"{start} --check"
    program, *arguments = shlex.split(check)
    assert program == "/opt/roamcast/bin/roamcast"
    config = tmp_path / "site.toml"
    config.write_text('data = "/var/lib/roamcast"\n')
    given = [str(config) if one == "/etc/roamcast/site.toml" else one for one in arguments]
    assert given != arguments
    assert run(build_app(), given) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "roamcast.service"
    unit.write_text(UNIT.read_text().replace("/opt/roamcast/bin/roamcast", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "roamcast.service:" not in done.stderr, done.stderr


def test_the_container_runs_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    found = dict(re.findall(r"^(ENTRYPOINT|HEALTHCHECK)[^\[]*(\[.*\])$", text, re.MULTILINE))
    for line in found.values():
        program, *arguments = json.loads(line)
        assert program == "/opt/roamcast/bin/roamcast"
        assert run(build_app(), [*arguments, "--help"]) == 0
        assert "Usage: roamcast broker" in capsys.readouterr().out
    assert len(found) == 2


def test_the_unit_tries_again_when_a_port_is_taken(tmp_path: Path) -> None:
    (kept_from,) = commands_of("RestartPreventExitStatus")

    def exit_code(*listen: str) -> str:
        words = ["broker", "--id", "a", "--data", str(tmp_path / "a"), "--listen", *listen]
        command = [sys.executable, "-m", "roamcast", *words]
        return str(subprocess.run(command, capture_output=True, timeout=60, check=False).returncode)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = exit_code(f"127.0.0.1:{taken.getsockname()[1]}")
    assert busy == "75"
    assert busy not in kept_from.split(), "another process may leave the port"
    assert exit_code("nonsense") in kept_from.split()


def test_the_build_context_leaves_out_what_no_image_needs() -> None:
    root = DEPLOY.parent
    left_out = (root / ".dockerignore").read_text().split()
    assert {".git", ".venv", "tests", "out", "demo"} <= set(left_out)
    copied = ("src", "deploy", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "MANIFEST.in")
    assert not set(copied) & set(left_out)


def test_the_container_takes_only_what_is_locked() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    installs = [line for line in text.replace("\\\n", " ").splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes --no-deps -r /source/deploy/requirements.lock" in installs[0]
    assert "--no-deps --no-build-isolation /source" in installs[1]
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]


def test_the_unit_has_room_for_all_quotas() -> None:
    quotas = Quotas()
    (files,), (memory,) = commands_of("LimitNOFILE"), commands_of("MemoryMax")
    assert int(files) >= quotas.connections_max + OWN_FILES
    assert memory.endswith("G")
    needed = 1.5 * (quotas.buffered_bytes_max + quotas.retained_bytes_max)
    assert int(memory[:-1]) * (1 << 30) >= needed


# --- what is installed ---


def locked() -> dict[str, tuple[str, str]]:
    """Version and hash of each package in the lock file."""
    text = (DEPLOY / "requirements.lock").read_text()
    assert "://" not in text
    found = re.findall(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    assert len(found) == sum("==" in line for line in text.splitlines()), "each line is a pin with its hash"
    return {name: (version, digest) for name, version, digest in found}


def test_the_lock_file_pins_every_dependency_to_a_version_that_fits() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    pins = locked()
    extras = project["project"]["optional-dependencies"]
    container = [text for extra in ("auth", "events", "location") for text in extras[extra]]
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"], *container):
        wanted = Requirement(text)
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        assert name in pins, f"{name} is not locked: run `make lock`"
        assert wanted.specifier.contains(pins[name][0]), f"{name} is locked too low: run `make lock`"


def test_the_sbom_lists_what_is_locked() -> None:
    sbom = json.loads((DEPLOY / "sbom.cdx.json").read_text())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.5")
    assert sbom["metadata"]["component"]["name"] == "roamcast"
    listed = {one["name"]: (one["version"], one["hashes"][0]["content"]) for one in sbom["components"]}
    assert listed == locked()
    (own,) = sbom["dependencies"]
    assert own["dependsOn"] == [one["bom-ref"] for one in sbom["components"]]


# --- Kubernetes: the manifest is checked, not run ---


@pytest.fixture
def manifest() -> dict[str, dict[str, Any]]:
    """The objects of deploy/pipeline.yaml, by their kind."""
    objects = list(yaml.safe_load_all((DEPLOY / "pipeline.yaml").read_text()))
    assert len({one["kind"] for one in objects}) == len(objects)
    return {one["kind"]: one for one in objects}


def settings_of(arguments: list[str]) -> dict[str, str]:
    """Spark's own settings among the arguments."""
    pairs = [one.removeprefix("--conf=").split("=", 1) for one in arguments if one.startswith("--conf=")]
    settings = dict(pairs)
    assert len(settings) == len(pairs), "none is given twice"
    return settings


def test_the_job_runs_a_command_that_exists_with_settings_that_belong_together(
    manifest: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {kind: one["apiVersion"] for kind, one in manifest.items()}
    access = "rbac.authorization.k8s.io/v1"
    assert versions == {
        "ServiceAccount": "v1", "Role": access, "RoleBinding": access, "PersistentVolumeClaim": "v1",
        "Job": "batch/v1",
    }  # fmt: skip
    pod = manifest["Job"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure")
    (driver,) = pod["containers"]
    program, *arguments = driver["args"]
    assert program == "roamcast"
    plain = [one for one in arguments if not one.startswith("--conf=")]
    assert run(build_app(), [*plain, "--help"]) == 0
    assert "Usage: roamcast pipeline audit" in capsys.readouterr().out
    options = dict(one.split("=", 1) for one in plain if "=" in one)
    assert options["--master"].startswith("k8s://https://")
    settings = settings_of(arguments)
    assert settings["spark.kubernetes.container.image"] == driver["image"] == "roamcast-pipeline:latest"
    account = manifest["ServiceAccount"]["metadata"]["name"]
    assert settings["spark.kubernetes.authenticate.serviceAccountName"] == account
    assert pod["serviceAccountName"] == account
    assert manifest["RoleBinding"]["subjects"][0]["name"] == account
    assert manifest["RoleBinding"]["roleRef"]["name"] == manifest["Role"]["metadata"]["name"]
    assert "create" in manifest["Role"]["rules"][0]["verbs"]
    ports = {one["name"]: str(one["containerPort"]) for one in driver["ports"]}
    assert ports["driver"] == settings["spark.driver.port"]
    assert ports["blocks"] == settings["spark.driver.blockManager.port"]
    known = {f"$({one['name']})" for one in driver["env"]}
    used = set(re.findall(r"\$\(\w+\)", " ".join(arguments)))
    assert used == known, "every variable is given, and used"


def test_driver_and_executors_see_the_same_folder(manifest: dict[str, dict[str, Any]]) -> None:
    pod = manifest["Job"]["spec"]["template"]["spec"]
    (driver,), (volume,) = pod["containers"], pod["volumes"]
    (mount,) = driver["volumeMounts"]
    claim = manifest["PersistentVolumeClaim"]["metadata"]["name"]
    assert manifest["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert (mount["name"], volume["persistentVolumeClaim"]["claimName"]) == (volume["name"], claim)
    settings = settings_of(driver["args"])
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    assert settings[f"{prefix}.mount.path"] == mount["mountPath"]
    assert settings[f"{prefix}.options.claimName"] == claim
    for option in ("--log", "--out"):
        (given,) = [one for one in driver["args"] if one.startswith(f"{option}=")]
        assert given.removeprefix(f"{option}=").startswith(f"{mount['mountPath']}/")


def test_the_image_of_the_pipeline_starts_what_spark_asks_for(tmp_path: Path) -> None:
    text = (DEPLOY / "Containerfile.pipeline").read_text()
    assert "'/source[pipeline]'" in text
    assert "COPY deploy/spark-entrypoint.sh /opt/spark-entrypoint.sh" in text
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    given = {
        "SPARK_EXECUTOR_MEMORY": "3g", "SPARK_DRIVER_URL": "spark://d", "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod", "SPARK_HOME": "/opt/spark",
        "SPARK_JAVA_OPT_0": "-Da=b c", "SPARK_JAVA_OPT_1": "-Dd", "PATH": f"{tmp_path}:/usr/bin:/bin",
    }  # fmt: skip
    script = ["sh", str(DEPLOY / "spark-entrypoint.sh")]
    said = subprocess.run([*script, "executor"], env=given, capture_output=True, text=True, check=True).stdout
    lines = said.splitlines()
    assert lines[:4] == ["-Da=b c", "-Dd", "-Xms3g", "-Xmx3g"]
    assert lines[lines.index("--driver-url") + 1] == "spark://d"
    other = subprocess.run([*script, "echo", "hello"], env=given, capture_output=True, text=True, check=True)
    assert other.stdout == "hello\n"
    pyspark = pytest.importorskip("pyspark", reason="the pipeline's extra is not installed")
    (jar,) = (Path(pyspark.__path__[0]) / "jars").glob("spark-kubernetes_*.jar")
    (main_class,) = [line for line in lines if line.startswith("org.apache.spark.")]
    with ZipFile(jar) as classes:
        assert f"{main_class.replace('.', '/')}.class" in classes.namelist()


# --- three brokers ---


def can_be_used(environment: dict[str, str], command: list[str], folder: Path) -> None:
    """The configuration that a container's environment and command make, with its folders in `folder`."""
    (folder / "users").write_text("")
    (folder / "users").chmod(0o600)
    for place in ("/var/lib/roamcast", "/etc/roamcast"):
        environment = {key: value.replace(place, str(folder)) for key, value in environment.items()}
    program = f"{sys.executable} -m roamcast broker"
    given = [re.sub(r"(/opt/roamcast/bin/)?roamcast broker", f"{program} --check", word) for word in command]
    assert given != command
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ROAMCAST_")}
    done = subprocess.run(
        given,
        env=inherited | environment | {"LINK_SECRET": "sixteen letters!", "PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known = {"PATH", "LINK_SECRET"} | {key for key in environment if key.startswith("ROAMCAST_")}
    assert set(environment) <= known
    assert "is not used" not in done.stderr, done.stderr


@pytest.mark.parametrize("broker", ["a", "b", "c"])
def test_the_brokers_of_the_compose_file_can_start(broker: str, tmp_path: Path) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    service = services[broker]
    environment = {key: str(value) for key, value in service["environment"].items()}
    can_be_used(environment, service["entrypoint"], tmp_path)
    peers = {value for key, value in environment.items() if re.fullmatch(r"ROAMCAST_PEER_\d_ID", key)}
    assert peers
    for peer in peers:
        assert broker in services[peer]["environment"].values(), "a link is configured at both ends"


@pytest.mark.parametrize("pod", ["roamcast-0", "roamcast-2"])
def test_the_brokers_on_kubernetes_can_start(pod: str, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "brokers.yaml").read_text()))
    (brokers,) = [one for one in documents if one["kind"] == "StatefulSet"]
    (container,) = brokers["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value", "") for one in container["env"]} | {"ROAMCAST_ID": pod}
    can_be_used(environment, container["command"], tmp_path)
