"""Attacks by invalid input: random bytes, and packets with a few wrong bytes."""

from __future__ import annotations

from roamcast.bench.attack.base import Attack, Hostile, Target, connected, failures_counted
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import PublishProperties
from roamcast.mqtt.codec.writing import write

SAMPLES = tuple(
    write(packet, 5)
    for packet in (
        packets.Connect(5, "fuzz", will=packets.Will("will/fuzz", b"gone")),
        packets.Publish(
            "fuzz/topic", b"payload", 1, packet_id=7, properties=PublishProperties(message_expiry=5)
        ),
        packets.Subscribe(
            3, (packets.SubscriptionEntry("fuzz/+/#", 2),), user_properties=(("where", "a > 1"),)
        ),
        packets.Unsubscribe(4, ("fuzz/+/#",)),
        packets.Pubrel(7),
        packets.Puback(9),
        packets.Disconnect(),
    )
)


def random_bytes(target: Target) -> None:
    """Send random bytes to every port in turn."""
    rng, doors = target.rng, list(target.ports)
    for number in target.turns():
        with failures_counted(target), Hostile(target.ports[doors[number % len(doors)]]) as client:
            client.socket.sendall(rng.randbytes(rng.choice((1, 10, 100, 4000))))
            target.counts["connections"] += 1


def mutated_packets(target: Target) -> None:
    """Send packets of an accepted client with a few wrong bytes."""
    rng = target.rng
    while not target.is_over:
        with failures_counted(target):
            client = connected(target, f"fuzz-{rng.randrange(20)}")
            if client is None:
                continue
            with client:
                for _ in range(rng.randrange(1, 20)):
                    data = bytearray(rng.choice(SAMPLES))
                    for _ in range(rng.randrange(4)):
                        data[rng.randrange(len(data))] = rng.randrange(256)
                    client.socket.sendall(bytes(data))
                    target.counts["packets"] += 1


ATTACKS = (
    Attack("random-bytes", "random bytes to every port", random_bytes),
    Attack("mutated-packets", "packets of admitted clients with up to three wrong bytes", mutated_packets),
)
