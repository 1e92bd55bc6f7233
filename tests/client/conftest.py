"""Servers that several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.servers import Broker, Mosquitto, Server, running, running_line


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(Broker(tmp_path_factory.mktemp("broker"))) as started:
        yield started


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running(Mosquitto(tmp_path_factory.mktemp("mosquitto"))) as started:
        yield started


@pytest.fixture(params=["broker", "mosquitto"])
def server(request: pytest.FixtureRequest) -> Server:
    """A broker of ours, and one of others."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Three brokers in a line, linked."""
    with running_line(tmp_path_factory.mktemp("line"), 3) as brokers:
        yield brokers


@pytest.fixture
def own_line(tmp_path: Path) -> Iterator[list[Broker]]:
    """Two linked brokers that a test may kill."""
    with running_line(tmp_path, 2) as brokers:
        yield brokers
