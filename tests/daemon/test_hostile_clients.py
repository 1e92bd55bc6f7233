"""Clients that once ended a broker, or got around its limits: a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.daemon.broker_process import BrokerProcess
from tests.daemon.raw_client import Raw

from roamcast.mqtt.codec.packets import Will
from roamcast.mqtt.codec.reasons import Reason
from roamcast.net.users import changing_users, hash_password

CONFIG = """
id = "a"
data = "data"
[[listener]]
port = 0
[access]
users = "users"
default = "allow"
[[access.rule]]
verdict = "allow"
action = "connect"
client = ["%u*", "$*"]
[quotas]
wills_bytes_max = 4000
[[steering.broker]]
id = "b"
address = "127.0.0.1:1"
position = "43.2,-2.9"
"""
ALICE: dict[str, Any] = {"username": "alice", "password": b"open sesame"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("attacked")
    with changing_users(str(folder / "users")) as users:
        users["alice"] = hash_password(b"open sesame")
    started = BrokerProcess(folder, CONFIG)
    yield started
    started.stop()


def test_a_position_that_is_nested_too_deeply_is_no_hint(broker: BrokerProcess) -> None:
    with Raw(broker, "alice", **ALICE) as alice:
        alice.subscribe("$roamcast/next")
        alice.publish("$roamcast/signal", b'{"a":' + b"[" * 100_000)
        alice.publish("$roamcast/signal", b'{"lat": 43.2, "lon": -2.8}')
        (sent_to,) = alice.take(1)
        assert b'"b"' in sent_to.payload


def test_wills_of_refused_clients_make_no_room_for_others(broker: BrokerProcess) -> None:
    will = Will("w", b"x" * 1000, delay=60)
    for number in range(20):
        with Raw(broker, f"other-{number}", will=will, **ALICE) as refused:
            assert refused.connack.reason is Reason.NOT_AUTHORIZED
    reasons = []
    for number in range(5):
        with Raw(broker, f"alice-{number}", expiry=60, will=will, **ALICE) as client:
            reasons.append(client.connack.reason)
    assert reasons == [Reason.SUCCESS] * 2 + [Reason.QUOTA_EXCEEDED] * 3


@pytest.mark.parametrize("client", ["$broker/a", "$share/g/topic"])
def test_names_of_brokers_and_groups_are_no_client_ids(broker: BrokerProcess, client: str) -> None:
    with Raw(broker, client, **ALICE) as refused:
        assert refused.connack.reason is Reason.CLIENT_IDENTIFIER_NOT_VALID


def test_other_client_ids_may_start_with_a_dollar(broker: BrokerProcess) -> None:
    with Raw(broker, "$x", **ALICE) as client:
        assert client.connack.reason is Reason.SUCCESS
