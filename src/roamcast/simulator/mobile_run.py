"""One checked run of brokers that move: deliveries owed, deliveries made, and the final tables.

A notification is owed to a subscriber if the broker that accepted it from its publisher knew a matching
subscription, and the subscriber still holds one. It stays owed whatever fails afterwards, with one exception:
the only broker that held it restarted without its memory. Besides, a broker must know a subscription once the
network has been whole and at rest for long enough after it was issued.

At the end every broker must know exactly the subscriptions that clients hold, and from every broker the
routes must lead to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from roamcast.errors import InputError
from roamcast.filters.filter import Attributes, Filter
from roamcast.mobility.moving.mobile import LOCAL, Identity, Known, Rep, identities
from roamcast.protocol.effects import Input, Migrated, SendFailed, Submitted
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.protocol.records import Row
from roamcast.simulator.checkers import Arrivals, Result
from roamcast.simulator.faults import Cut, Heal, Relink
from roamcast.simulator.links import longest_s
from roamcast.simulator.mobile_network import MobileNetwork
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.topology import Topology

Owed = tuple[str, Identity]
AMNESIA = "lost (amnesia)"


class MobileChecker:
    """Observes every step of a network."""

    def __init__(self, network: MobileNetwork) -> None:
        self.network = network
        self.result = Result()
        self._published: dict[Identity, Attributes] = {}
        self._owed: dict[Owed, tuple[float, tuple[str, ...]]] = {}
        """Owed notifications: receiver, notification, time of publishing, and the subscriptions."""
        self._ended: dict[tuple[str, str], int] = {}
        """By client and subscription: the timestamp of its last end."""
        self._arrivals = Arrivals(self.result)
        self._excused: dict[Owed, None] = {}
        self._ever: dict[str, dict[str, Filter]] = {}
        """All subscriptions that a client ever made."""
        self._unrest_at = 0.0
        settings = network.settings
        link_s = longest_s(settings.link_delay, settings.loss)
        self._rest_s = 6 * len(network.topology.brokers) * link_s + 4 * settings.access_delay.high_s
        self._report = network.observe
        network.observe = self._observe
        network.on_step = self._on_step
        network.on_amnesia = self._on_amnesia
        network.on_change = self._on_change

    # --- what is owed ---

    def _on_step(self, broker: str, inputs: Sequence[Input]) -> None:
        for item in inputs:
            if not isinstance(item, Submitted):
                if isinstance(item, Migrated | SendFailed):
                    self._unrest_at = self.network.now
            elif isinstance(item.message, Burst):
                self._publish(broker, item.message)

    def _publish(self, broker: str, burst: Burst) -> None:
        attributes, had = decode_attributes(burst.attributes), self._arrivals.had
        for identity in identities(burst):
            self.result.published += identity not in self._published
            self._published[identity] = attributes
            for client, known in self.network.brokers[broker].machine.known.items():
                texts = self._held(client, known, attributes)
                if texts and not had(client, identity):
                    self._owed.setdefault((client, identity), (self.network.now, texts))
                    self._excused.pop((client, identity), None)
            self._expect_known(broker, identity, attributes)

    def _held(self, client: str, known: Known, attributes: Attributes) -> tuple[str, ...]:
        """Return the matching subscriptions that the broker knows and that the client has held all
        the time.
        """
        one = self.network.clients.get(client)
        held = one.subscriber.filters if one is not None else {}
        return tuple(
            text
            for text, filter in known.filters.items()
            if text in held
            and filter.matches(attributes)
            and known.since >= self._ended.get((client, text), 0)
        )

    def _expect_known(self, broker: str, identity: Identity, attributes: Attributes) -> None:
        """Check without tables that a broker knows each client that subscribed long enough ago, if all has
        been quiet.
        """
        network, had = self.network, self._arrivals.had
        is_whole = len(network.tree_of(broker)) == len(network.topology.brokers)
        if not is_whole or network.now < self._unrest_at + self._rest_s:
            return
        for client in network.clients.values():
            since = network.changed_at.get(client.id, network.now)
            is_settled = since + self._rest_s <= network.now and client.subscriber.broker
            is_served = (client.id, identity) in self._owed or had(client.id, identity)
            if is_settled and not is_served and self._wants(client.id, attributes):
                self.result.violate("unknown", f"{broker} does not know what {client.id} subscribed to")

    def _wants(self, client: str, attributes: Attributes) -> bool:
        one = self.network.clients.get(client)
        return one is not None and _matches(one.subscriber.filters, attributes)

    def _on_amnesia(self, broker: str) -> None:
        """Excuse notifications that only this broker holds: stored, or sent and not acknowledged."""
        self._unrest_at = self.network.now
        node = self.network.brokers[broker]
        held: dict[Owed, None] = {}
        for client, queue in node.machine.queues.items():
            held.update({(client, one): None for burst in queue for one in identities(burst)})
        for client, visit in node.visits.items():
            held.update(
                {(client, one): None for burst in visit.unacknowledged() for one in identities(burst)}
            )
        for link in self.network.links[broker].values():
            for message in link.directions[broker].unacknowledged:
                bursts = message.bursts if isinstance(message, Rep) else ()
                bursts = (message,) if isinstance(message, Burst) else bursts
                sent = {one: None for burst in bursts for one in identities(burst)}
                held.update({owed: None for owed in self._owed if owed[1] in sent})
        self._excused.update({owed: None for owed in held if not self._arrivals.had(*owed)})

    # --- what came ---

    def _observe(self, rows: list[Row]) -> None:
        self._report(rows)
        for row in rows:
            if row.kind == "delivered":
                self._on_delivered(row)
            elif row.kind == "moved" and row.reason not in (None, "left", row.broker):
                self.result.handoffs += 1

    def _on_delivered(self, row: Row) -> None:
        client = row.client or ""
        identity = (row.publisher or "", row.incarnation or 0, row.number or 0)
        self._arrivals.take(client, identity)
        attributes = self._published.get(identity)
        if attributes is None:
            self.result.violate("invented", f"{client} got {identity}, which nobody published")
        elif not _matches(self._ever.get(client, {}), attributes):
            self.result.violate("not matching", f"{client} got {identity[0]}/{identity[2]} with {attributes}")

    def _on_change(self, client: str) -> None:
        """After an unsubscription, allow but do not require outstanding notifications."""
        one = self.network.clients[client].subscriber
        ever = self._ever.setdefault(client, {})
        ever.update(one.filters)
        self._ended.update({(client, text): one.timestamp for text in ever if text not in one.filters})
        for owed in [one for one in self._owed if one[0] == client and not self._arrivals.had(*one)]:
            if not any(text in one.filters for text in self._owed[owed][1]):
                del self._owed[owed]

    # --- the end ---

    def finish(self) -> Result:
        result, network = self.result, self.network
        result.expected = len(self._owed)
        result.crashes, result.links_down = network.crashes, network.links_lost // 2
        for (client, identity), (published_at, _) in self._owed.items():
            if self._arrivals.had(client, identity):
                continue
            result.lost += 1
            if (client, identity) in self._excused:
                result.excused[AMNESIA] = result.excused.get(AMNESIA, 0) + 1
            else:
                what = f"{client} never got {identity[0]}/{identity[2]}, published at {published_at:.6f}"
                result.violate("lost", what)
        for what in network.waiting():
            result.violate("in flight at the end", what)
        for kind, what in self._wrong_tables():
            result.violate(kind, what)
        return result

    def _wrong_tables(self) -> Iterator[tuple[str, str]]:
        network = self.network
        for id, broker in network.brokers.items():
            machine = broker.machine
            if len(network.tree_of(id)) < len(network.brokers):
                yield "tree split at the end", f"{id} is connected with {', '.join(network.tree_of(id))}"
            for client, (_, filters) in machine.routes().items():
                held = network.clients[client].subscriber.filters if client in network.clients else {}
                for text in filters:
                    if text not in held:
                        yield "phantom", f"{id} has a subscription of {client} to {text}"
            for client, one in network.clients.items():
                _, known = machine.routes().get(client, ("", ()))
                missing = [text for text in one.subscriber.filters if text not in known]
                if missing:
                    yield "forgotten", f"{id} does not know that {client} subscribed to {', '.join(missing)}"
                elif one.subscriber.filters and self._end_of_way(id, client) != one.subscriber.broker:
                    yield "wrong way", f"from {id} to {client}, which is at {one.subscriber.broker}"
            for client, queue in machine.queues.items():
                if queue:
                    yield "never drained", f"{len(queue)} bursts for {client} at {id}"

    def _end_of_way(self, broker: str, client: str) -> str | None:
        """Return where the routes from a broker lead."""
        seen: dict[str, None] = {}
        at = broker
        while at not in seen:
            seen[at] = None
            machine = self.network.brokers[at].machine
            known = machine.known.get(client)
            if known is None or known.way is None:
                return None
            if known.way == LOCAL:
                return at
            if known.way not in machine.peers:
                return None
            at = known.way
        return None


def _matches(filters: dict[str, Filter], attributes: Attributes) -> bool:
    return any(filter.matches(attributes) for filter in filters.values())


def run_mobile(
    topology: Topology,
    settings: NetworkSettings,
    actions: Iterable[Action],
    observe: Callable[[list[Row]], None] | None = None,
    trace: Callable[[float, str, str, Message], None] | None = None,
) -> tuple[Result, MobileNetwork]:
    """Perform the actions, repair everything, let the network come to rest, and check it."""
    network = MobileNetwork(topology, settings, observe, trace)
    checker = MobileChecker(network)
    network.run(actions)
    return checker.finish(), network


def check_mobile_action(topology: Topology, broker: str, item: Input) -> None:
    """Refuse a link to a broker that does not exist."""
    peers = [item.peer] if isinstance(item, Cut | Heal) else []
    peers += [item.old, item.new] if isinstance(item, Relink) else []
    for peer in peers:
        if peer not in topology.brokers or peer == broker:
            others = ", ".join(one for one in topology.brokers if one != broker)
            raise InputError(f"{broker} can have no link to {peer!r}; valid are {others}")
