"""Sessions of the endpoint in random stories: clients come and go without a word, proxies are killed.

A client here is what the MQTT endpoint is to the service: a connection in the same process. The checker
knows what was published, what came, and what had been acknowledged when it came.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.proxy.foreign import Network
from tests.proxy.test_stories import Findings, publish_for, random_tree
from tests.proxy.world import World, in_virtual_time, run, until

from roamcast.proxy import messages, residents, steps
from roamcast.proxy.adapter import ForeignMessage

SEEDS = range(6)
MANY_SEEDS = range(150)
ATTACH, SUBSCRIBE = 1, 2


class EndpointClient:
    """One client, wherever it is."""

    def __init__(self, world: World, random: Random, findings: Findings) -> None:
        self._world, self._random, self._findings = world, random, findings
        self.acknowledged: set[str] = set()
        self.wrong: list[str] = []
        """What came again although it had been acknowledged."""
        self._connection = 0
        self._site = ""
        self._answers: asyncio.Queue[object] = asyncio.Queue()
        self.tickets = 0

    async def attach(self, site: str) -> bool:
        """Whether there was a session; comes back later as long as a site cannot be asked."""
        while True:
            answer = await self._try(site)
            if isinstance(answer, steps.Attached):
                return answer.is_present
            self.leave()
            await asyncio.sleep(0.3)

    async def _try(self, site: str) -> object:
        server = self._world.servers.get(site)
        if server is None:
            return None
        self._site, self._connection, self._answers = site, server.new_connection(), asyncio.Queue()
        connection = self._connection
        server.locals[connection] = lambda message: self._take(connection, message)
        self.tickets += 1
        attach = steps.Attach(ATTACH, "car", "", f"ticket-{self.tickets:012}", False, 3600.0)
        server.step([steps.Joined(connection, "endpoint", ""), steps.Got(connection, attach)])
        async with asyncio.timeout(120):
            return await self._answers.get()

    async def subscribe(self, filter: str) -> None:
        server = self._world.servers[self._site]
        server.step([steps.Got(self._connection, steps.Subscribe(SUBSCRIBE, {filter: "1"}))])
        assert await self._answers.get() == steps.Done(SUBSCRIBE)

    def _take(self, connection: int, message: object) -> None:
        if connection != self._connection:
            return
        if not isinstance(message, messages.Batch):
            self._answers.put_nowait(message)
            return
        for one in message.messages:
            if one.identity in self.acknowledged:
                self.wrong.append(one.identity)
            if one.identity not in self._findings.got:
                self._findings.got.append(one.identity)
        taken = self._random.randint(0, len(message.messages))
        last = message.first + taken - 1
        if taken:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._acknowledge, connection, last, message.messages[:taken])

    def _acknowledge(self, connection: int, last: int, taken: tuple[ForeignMessage, ...]) -> None:
        server = self._world.servers.get(self._site)
        if server is not None and connection in server.locals:
            server.step([steps.Got(connection, messages.Taken(ATTACH, last))])
            self.acknowledged.update(one.identity for one in taken)

    def leave(self) -> None:
        """Without a word."""
        server = self._world.servers.get(self._site)
        if server is not None and server.locals.pop(self._connection, None) is not None:
            server.step([steps.Left(self._connection)])
        self._connection = 0


async def story(seed: int, monkeypatch: pytest.MonkeyPatch, kills: bool) -> tuple[Findings, EndpointClient]:
    random = Random(seed)
    network = Network(random, random_tree(random))
    world = World(network, monkeypatch)
    findings = Findings()
    client = EndpointClient(world, random, findings)
    await asyncio.sleep(1)
    sites = list(network.sites)
    assert not await client.attach(random.choice(sites))
    await client.subscribe("road/#")
    await asyncio.sleep(5)
    publishing = [
        asyncio.create_task(publish_for(network, site, random, findings)) for site in random.sample(sites, 2)
    ]
    for _ in range(random.randint(3, 7)):
        await asyncio.sleep(random.choice((0.0, 0.1, random.uniform(0, 3))))
        client.leave()
        await asyncio.sleep(random.choice((0.0, random.uniform(0, 3))))
        if kills and random.random() < 0.4:
            site = random.choice(sites)
            world.kill(site)
            await asyncio.sleep(random.uniform(0, 2))
            world.start(site)
        assert await client.attach(random.choice(sites)), "the session was forgotten"
    for task in publishing:
        task.cancel()
    for _ in range(100):  # Whoever acknowledges only a part gets the rest when it comes again.
        await asyncio.sleep(3)
        if len(findings.got) == len(findings.published):
            break
        client.leave()
        await client.attach(random.choice(sites))
    return findings, client


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = seed % 2 == 0
    findings, client = run(story(seed, monkeypatch, kills))
    assert findings.published
    assert (findings.lost, client.wrong, findings.disordered) == ([], [], [])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_follows_its_client_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_the_same_over_many_seeds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


def test_a_session_adopted_without_a_ping_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted breakage: the new site fetches before its subscriptions are known everywhere."""

    def begin(self: residents.Adopting) -> None:
        self._link = self._service.dial(self._site, self)

    monkeypatch.setattr(residents.Adopting, "begin", begin)
    assert any(run(story(seed, monkeypatch, False))[0].lost for seed in SEEDS)


@in_virtual_time
async def test_two_users_of_one_client_id_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Network(Random(1), [("a", "b")], 0.05), monkeypatch)
    await asyncio.sleep(1)
    answers: list[object] = []
    for site in ("a", "b", "a"):
        server = world.servers[site]
        connection = server.new_connection()
        server.locals[connection] = answers.append
        count = len(answers)
        attach = steps.Attach(1, "car", f"user-{count}", f"ticket-of-{count:8}", False, 60.0)
        server.step([steps.Joined(connection, "endpoint", ""), steps.Got(connection, attach)])
        await until(lambda count=count: len(answers) > count)  # type: ignore[misc]
    assert isinstance(answers[0], steps.Attached)
    for answer in answers[1:]:
        assert isinstance(answer, messages.MoveRefused)
        assert "client id 'car' belongs to another user" in answer.text
