"""Sites, links and roaming MQTT clients under every interruption: what was promised is kept."""

import random

import pytest
from tests.broker.world import World, bring_home, check

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
