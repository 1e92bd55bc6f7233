"""A client that moves between two broker processes again and again is refused with a reason, logged once."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, free_port
from tests.daemon.raw_client import Raw

from roamcast.mqtt.codec.reasons import Reason

LIMIT = "quotas.handoffs_per_client_per_minute_max=2"


@pytest.mark.slow
def test_a_flapping_client_is_refused_and_its_session_stays(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(tmp_path, "a", LIMIT, link_port=port)
        stack.callback(a.kill)
        b = BrokerProcess(tmp_path, "b", LIMIT, peers={"a": port})
        stack.callback(b.kill)
        b.wait_for("link to a is up")

        def connect(broker: BrokerProcess, client: str) -> tuple[int, bool]:
            with Raw(broker, client, expiry=600, clean=False) as raw:
                found = raw.connack.reason, raw.connack.session_present
                if found[0] == Reason.SUCCESS:
                    raw.leave()
            return found

        assert connect(a, "other") == (Reason.SUCCESS, False)
        came = [connect(broker, "restless") for broker in (a, b, a, b)]
        assert came == [(Reason.SUCCESS, False)] + 3 * [(Reason.SUCCESS, True)]
        assert [connect(a, "restless") for _ in range(3)] == 3 * [(Reason.CONNECTION_RATE_EXCEEDED, False)]
        assert connect(b, "restless") == (Reason.SUCCESS, True), "the session stays where it is"
        assert connect(b, "other") == (Reason.SUCCESS, True), "others may move"
        assert sum("restless is refused: it moved here 2 times" in line for line in a.lines) == 1
