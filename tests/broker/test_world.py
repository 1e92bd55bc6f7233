"""Sites, links and roaming MQTT clients under every interruption: what was promised is kept."""

import random

import pytest
from tests.broker.world import World

TOPICS = ("a/1", "a/2", "b/1")


def drive(world: World, rng: random.Random, rounds: int) -> None:
    """Clients roam, publish and subscribe at random moments."""
    names = list(world.clients)
    for _ in range(rounds):
        name, choice = rng.choice(names), rng.random()
        client = world.clients[name]
        if choice < 0.25:
            world.attach(name, rng.choice(world.ids))
        elif choice < 0.3 and client.connection:
            world.drop(client.connection, name, tell=rng.random() < 0.7)
        elif choice < 0.33:
            one, other = rng.choice(world.links)
            if world.up[one, other]:
                world.cut_link(one, other)
        elif choice < 0.38:
            one, other = rng.choice(world.links)
            if not world.up[one, other]:
                world.connect_link(one, other)
        else:
            world.publish(name, rng.choice(TOPICS), rng.choice((1, 2)))
        world.run(rng.randrange(12))


def bring_home(world: World, rng: random.Random) -> None:
    """Everyone attaches once more, and everything is delivered."""
    world.settle()
    for name in world.clients:
        world.attach(name, rng.choice(world.ids))
    world.settle()


def check(world: World) -> None:
    """Nothing acknowledged is lost, QoS 2 repeats nothing, every publisher's order holds."""
    for reader in world.clients.values():
        seen: dict[str, int] = {}
        for payload, qos, _ in reader.received:
            seen[payload] = seen.get(payload, 0) + 1
            assert qos < 2 or seen[payload] == 1, f"{reader.id} got {payload} twice"
        for writer in world.clients.values():
            wanted = [one for one in writer.sent if one.split(":")[2].startswith("a/")]
            missing = [one for one in wanted if one not in seen and one in writer.acknowledged]
            assert not missing, f"{reader.id} lost {missing}"
            first = [one for one in dict.fromkeys(one for one, _, _ in reader.received) if one in wanted]
            assert first == [one for one in wanted if one in seen], f"{reader.id}: order of {writer.id}"


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_roaming_clients_get_everything_once_and_in_order(seed: int, crash: bool) -> None:
    rng = random.Random(seed)
    world = World(seed, 4, [(0, 1), (1, 2), (1, 3)])
    for number in range(4):
        world.attach(f"c{number}", rng.choice(world.ids), version=rng.choice((4, 5)))
        world.settle()
        world.subscribe(f"c{number}", "a/#", 2)
        world.settle()
    world.crashes = crash
    drive(world, rng, 60)
    world.crashes = False
    bring_home(world, rng)
    check(world)
    assert sum(len(client.sent) for client in world.clients.values()) > 10
