from roamcast.mqtt.server.marks import RETAINED, SHARED
from roamcast.protocol.notification import PICKED


def test_the_core_knows_the_marks_of_what_was_picked_for_a_client() -> None:
    assert PICKED == RETAINED | SHARED
