"""Pin what an installation of Roamcast consists of: deploy/requirements.lock, with hashes, and an SBOM.

    python scripts/lock.py

pip chooses the newest versions that pyproject.toml allows, for the Python and the platform this runs on, and
tells the hash of each file. Nothing is installed. The SBOM is CycloneDX 1.5, made from what pip told.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "deploy" / "requirements.lock"
SBOM = ROOT / "deploy" / "sbom.cdx.json"
EXTRAS = ("auth", "events", "location")  # what a broker in a container can be configured to use
HEAD = """\
# What `pip install --require-hashes` installs for a broker with tokens, event logs and locations. `make lock`
# made it. The hashes are those of the files for Python {version} on {system};
# for another platform, run `make lock` there.
"""


def resolve(project: dict[str, Any]) -> list[dict[str, Any]]:
    """What pip would install: the dependencies of a broker with its extras, and what the build needs."""
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in EXTRAS:
        wanted += project["project"]["optional-dependencies"][extra]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--only-binary=:all:", "--report", str(report), *wanted], check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return sorted(found, key=name_of)


def name_of(package: dict[str, Any]) -> str:
    return re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()


def version_of(package: dict[str, Any]) -> str:
    return str(package["metadata"]["version"])


def hash_of(package: dict[str, Any]) -> str:
    return str(package["download_info"]["archive_info"]["hashes"]["sha256"])


def lock(packages: list[dict[str, Any]]) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [HEAD.format(version=version, system=f"{platform.system()} {platform.machine()}")]
    for package in packages:
        lines.append(f"{name_of(package)}=={version_of(package)} \\\n    --hash=sha256:{hash_of(package)}\n")
    return "".join(lines)


def component(package: dict[str, Any]) -> dict[str, Any]:
    purl = f"pkg:pypi/{name_of(package)}@{version_of(package)}"
    described: dict[str, Any] = {
        "type": "library", "bom-ref": purl, "name": name_of(package), "version": version_of(package),
        "purl": purl, "hashes": [{"alg": "SHA-256", "content": hash_of(package)}],
    }  # fmt: skip
    expression = package["metadata"].get("license_expression")
    if expression:
        described["licenses"] = [{"expression": expression}]
    return described


def sbom(project: dict[str, Any], packages: list[dict[str, Any]]) -> dict[str, Any]:
    about = project["project"]
    own = f"pkg:pypi/{about['name']}@{about['version']}"
    components = [component(package) for package in packages]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": own, "name": about["name"], "version": about["version"],
                "purl": own, "licenses": [{"expression": about["license"]}],
            },
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }  # fmt: skip


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = resolve(project)
    LOCK.write_text(lock(packages))
    SBOM.write_text(json.dumps(sbom(project, packages), indent=1) + "\n")
    print(f"{len(packages)} packages in {LOCK.relative_to(ROOT)} and {SBOM.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
