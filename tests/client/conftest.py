"""Servers that several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.servers import Broker, Mosquitto, Server, line_of_brokers


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("broker"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    started = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(params=["broker", "mosquitto"])
def server(request: pytest.FixtureRequest) -> Server:
    """A broker of ours, and one of others."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Three brokers in a line, linked."""
    brokers = line_of_brokers(tmp_path_factory.mktemp("line"), 3)
    yield brokers
    for one in brokers:
        one.stop()


@pytest.fixture
def own_line(tmp_path: Path) -> Iterator[list[Broker]]:
    """Two linked brokers that a test may kill."""
    brokers = line_of_brokers(tmp_path, 2)
    yield brokers
    for one in brokers:
        one.stop()
