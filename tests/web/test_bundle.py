"""The bundle that ships is built from the sources beside it, fetches nothing, and is part of the package."""

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "web"
BUNDLE = ROOT / "src" / "roamcast" / "web"
BUNDLE_MAX_BYTES = 350_000
NOT_SOURCES = {"node_modules", ".svelte-kit"}


def digests(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file() and not NOT_SOURCES & set(file.parts)]
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def built() -> dict[str, dict[str, str]]:
    digest: dict[str, dict[str, str]] = json.loads((BUNDLE / "build.json").read_text())
    return digest


def test_the_bundle_is_built_from_these_sources() -> None:
    assert built()["sources"] == digests(SOURCE), "run `make web` and commit src/roamcast/web"


def test_the_bundle_is_as_it_was_built() -> None:
    assert built()["bundle"] == {name: one for name, one in digests(BUNDLE).items() if name != "build.json"}


def test_the_bundle_is_small_and_part_of_the_package() -> None:
    files = [file for file in BUNDLE.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < BUNDLE_MAX_BYTES
    with (ROOT / "pyproject.toml").open("rb") as opened:
        patterns = tomllib.load(opened)["tool"]["setuptools"]["package-data"]["roamcast"]
    packed = {file for pattern in patterns for file in BUNDLE.parent.glob(pattern)}
    assert set(files) <= packed


def test_the_page_has_nothing_that_a_strict_policy_forbids() -> None:
    page = (BUNDLE / "index.html").read_text()
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:|https?:|data:", page)
    assert re.findall(r'(?:src|href)="([^"]+)"', page)
    assert all(name.startswith("/assets/") for name in re.findall(r'(?:src|href)="([^"]+)"', page))


def test_the_lock_file_names_hashes_and_no_registry() -> None:
    packages = json.loads((SOURCE / "package-lock.json").read_text())["packages"]
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert "integrity" in package or not name, name


@pytest.mark.slow
def test_a_build_gives_the_same_bundle(tmp_path: Path) -> None:
    if shutil.which("npm") is None or not (SOURCE / "node_modules").is_dir():
        pytest.skip("needs npm and web/node_modules, which `make web` fills")
    source = tmp_path / "web"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("node_modules"))
    (source / "node_modules").symlink_to(SOURCE / "node_modules")
    (tmp_path / "src" / "roamcast").mkdir(parents=True)
    subprocess.run(["npm", "run", "build"], cwd=source, check=True, capture_output=True, timeout=300)
    again = json.loads((tmp_path / "src" / "roamcast" / "web" / "build.json").read_text())
    assert again["bundle"] == built()["bundle"]
