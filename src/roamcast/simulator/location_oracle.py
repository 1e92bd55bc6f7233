"""Two oracles for clients that stay at their brokers and move from location to location.

Flooding: the story is run again with every notification sent to every broker, and each client's filters are
applied where it is attached (section 3.3 of Fiege et al.). Logical mobility must give the same notifications
in each epoch.

Timing: a client that is too fast for the network misses some of these. Which ones follows from the delays of
the links: from the state of the client that each broker on the path knew when the notification passed, and
from the number of steps for which that broker allowed. This oracle computes it without the brokers' tables,
and the result must match exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from roamcast.errors import InputError
from roamcast.filters.expression import And, Expression, Or, Own, Value
from roamcast.filters.filter import Attributes, Filter
from roamcast.filters.geography import position_text
from roamcast.mobility import Promise, find_protocol
from roamcast.protocol.effects import AttachTo, Input, LeaveFor, MoveTo, PublishThis, UnsubscribeFrom
from roamcast.protocol.notification import decode_attributes
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.variables import NumberSteps, Variable
from roamcast.simulator.checkers import Identity
from roamcast.simulator.location_checks import Epoch, LocationChecker, NearPosition, Published

if TYPE_CHECKING:
    from roamcast.simulator.network import NetworkSettings
    from roamcast.simulator.run import Run
    from roamcast.simulator.story import Story


def judge_location(story: Story, run: Run) -> None:
    """Add verdicts on filters that depend on clients' own state to the result of a story."""
    checker, result = run.location, run.result
    if checker is None or story.has_faults:
        return
    result.located = sum(map(len, checker.epochs.values()))
    for text in misplaced(story, checker):
        result.violate("located elsewhere", text)
    if is_standing(story, checker):
        oracle = flooded(story).simulate().location
        assert oracle is not None
        blackout: dict[tuple[str, Identity], int] = {}
        for kind, text in compare(story, checker, oracle, blackout):
            result.violate(kind, text)
        result.blacked_out = len(blackout)
    elif delivers_once(find_protocol(story.settings.protocol).promise):
        between = Timing(story, checker).delay_s if has_fixed_delays(story.settings) else None
        for kind, text in checker.judge(story.settings.delay_bound_s(story.topology), between):
            result.violate(kind, text)


PLACE = "location"


def said_by(item: Input, told_in: Sequence[str]) -> Value | None:
    """Return the location that a client reports with this action."""
    if isinstance(item, MoveTo):
        return item.values.get(PLACE)
    if not told_in or not isinstance(item, PublishThis):
        return None
    attributes = decode_attributes(item.attributes)
    parts = [attributes[name] for name in told_in if name in attributes]
    if len(parts) < len(told_in):
        return None
    return parts[0] if len(parts) == 1 else position_text(*map(float, parts))


def misplaced(story: Story, checker: LocationChecker) -> Iterator[str]:
    """Return clients whose final location differs from their last report, or from their broker's place if
    they never reported.
    """
    location = story.settings.location
    attached: dict[str, None] = {}
    places: dict[str, Value] = {}
    lent: dict[str, Value | None] = {}
    for _, client, item in story.actions:
        if isinstance(item, AttachTo):
            attached[client] = None
            lent[client] = location.lent.get(item.broker, lent.get(client))
        elif isinstance(item, LeaveFor):
            attached.pop(client, None)
        said = said_by(item, location.told_in)
        if said is not None and not _is_refused(said, location.variables):
            places[client] = said
    for client in attached:
        place = places.get(client, lent[client])
        epochs = checker.epochs[client]
        found = epochs[-1].values.get(PLACE) if epochs else None
        if found != place and not _is_one_place(found, place):
            yield f"{client} is assumed to be at {found!r} but should be at {place!r}"


def _is_refused(place: Value, variables: Mapping[str, Variable]) -> bool:
    try:
        variables[PLACE].check(place)
    except (KeyError, InputError):
        return True
    return False


def _is_one_place(one: Value | None, other: Value | None) -> bool:
    """Return whether two positions differ only in notation."""
    if not (isinstance(one, str) and isinstance(other, str) and "," in one and "," in other):
        return False
    return [float(part) for part in one.split(",")] == [float(part) for part in other.split(",")]


def delivers_once(promise: Promise) -> bool:
    """Return whether a protocol promises exactly once in order, within its buffer limits."""
    broken = promise.duplicate | promise.reordered | promise.stale
    return not broken and promise.lost <= {"overflow", "expired"}


def is_standing(story: Story, checker: LocationChecker) -> bool:
    """Return whether all clients attach and subscribe once, before the first publish, and then only walk."""
    first_publish_s = min((at for at, _, item in story.actions if isinstance(item, PublishThis)), default=0.0)
    attached: dict[str, None] = {}
    for at, client, item in story.actions:
        is_elsewhere = isinstance(item, AttachTo) and client in attached
        if is_elsewhere or isinstance(item, LeaveFor | UnsubscribeFrom):
            return False
        if not isinstance(item, MoveTo | PublishThis) and at > first_publish_s:
            return False
        if isinstance(item, AttachTo):
            attached[client] = None
    settled_s = first_publish_s - 4 * story.settings.delay_bound_s(story.topology)
    return (
        has_fixed_delays(story.settings)
        and all(_is_walking(epochs, settled_s) for epochs in checker.epochs.values())
        and all(
            kept[0].settled_at < settled_s
            for subscriptions in checker.subscriptions.values()
            for kept in subscriptions.values()
        )
    )


def has_fixed_delays(settings: NetworkSettings) -> bool:
    """Return whether arrival times are known, whatever else is sent."""
    delays = (settings.access_delay, settings.link_delay, *(one[2] for one in settings.link_delays))
    return all(delay.is_fixed for delay in delays) and not (
        settings.service_s or settings.access_bits_per_s or settings.loss
    )


def _is_walking(epochs: list[Epoch], settled_s: float) -> bool:
    """Return whether a client has one first location, known to all brokers in time, and then only steps."""
    return not epochs or (epochs[0].begins_at < settled_s and not any(epoch.is_late for epoch in epochs[1:]))


def flooded(story: Story) -> Story:
    """Return the same story with flooding and filtering at the client's broker. Nobody roams, so no
    protocol is needed."""
    settings = replace(story.settings, protocol="none", routing="flooding", advertisements=False)
    return replace(story, settings=settings)


class Timing:
    """Computes which notifications do not get through because news of a client's moves came too late."""

    def __init__(self, story: Story, checker: LocationChecker) -> None:
        self._story = story
        self._checker = checker
        self._brokers = {
            client: item.broker for _, client, item in story.actions if isinstance(item, AttachTo)
        }
        self._delays: dict[tuple[str, str], float] = {}

    def blackout(self, client: str) -> Iterator[tuple[Identity, int]]:
        """Return the notifications that a client misses compared with flooding, with their epochs."""
        broker = self._brokers[client]
        epochs = self._checker.epochs[client]
        begins = [epoch.begins_at for epoch in epochs]
        for notification in self._checker.published:
            arrives_at = notification.at + self.delay_s(notification.broker, broker)
            index = bisect_right(begins, arrives_at) - 1
            values = epochs[index].values if index >= 0 else {}
            wanted = any(
                self._checker.exact(filter, values).matches(notification.attributes)
                for filter in self._filters(client)
            )
            if wanted and not self._gets_through(notification, broker):
                yield notification.identity, index

    def _filters(self, client: str) -> Iterator[Filter]:
        for kept in self._checker.subscriptions[client].values():
            yield kept[0].filter

    def delay_s(self, start: str, end: str) -> float:
        if (start, end) not in self._delays:
            path = self._story.topology.path(start, end)
            between = self._story.settings.delay_between
            self._delays[start, end] = sum(between(a, b).low_s for a, b in pairwise(path))
        return self._delays[start, end]

    def _gets_through(self, notification: Published, end: str) -> bool:
        """Return whether each broker on the path forwards it: for this client, or for any other behind the
        link."""
        if self._story.settings.routing == "flooding":
            return True
        for here, there in pairwise(self._story.topology.path(notification.broker, end)):
            at = notification.at + self.delay_s(notification.broker, here)
            behind = [
                client
                for client, broker in self._brokers.items()
                if there in self._story.topology.path(here, broker)
            ]
            if not any(self._lets_through(client, here, at, notification.attributes) for client in behind):
                return False
        return True

    def _lets_through(self, client: str, broker: str, at: float, attributes: Attributes) -> bool:
        delay_s = self.delay_s(self._brokers[client], broker)
        epochs = self._checker.epochs[client]
        known = bisect_right([epoch.begins_at + delay_s for epoch in epochs], at) - 1
        epoch = epochs[known] if known >= 0 else None
        return any(
            self._may_match(filter.expression, attributes, epoch, delay_s) for filter in self._filters(client)
        )

    def _may_match(
        self, expression: Expression, attributes: Attributes, epoch: Epoch | None, delay_s: float
    ) -> bool:
        """Return whether a filter matches for any possible state of the client."""
        match expression:
            case And():
                return all(self._may_match(one, attributes, epoch, delay_s) for one in expression.children)
            case Or():
                return any(self._may_match(one, attributes, epoch, delay_s) for one in expression.children)
            case Own(name, _, variable):
                if epoch is None or variable not in epoch.values or name not in attributes:
                    return False
                return self._may_be(expression, attributes[name], epoch, delay_s)
        return Filter(expression).matches(attributes)

    def _may_be(self, condition: Own, attribute: Value, epoch: Epoch, delay_s: float) -> bool:
        stay_s = epoch.stays_s[condition.variable]
        distance_s = 2 * delay_s if self._checker.settings.rule.distance == "round_trip" else delay_s
        steps = _steps(distance_s, stay_s, self._checker.settings.rule.rounding)
        if steps == math.inf or (condition.negative and steps > 0):
            return True
        value = epoch.values[condition.variable]
        variable = self._checker.settings.variables[condition.variable]
        if isinstance(variable, NumberSteps):
            return _number_may_be(condition, attribute, variable, value, steps)
        if isinstance(variable, Earth):
            near = NearPosition(str(value), condition.within + steps * variable.step_m)
            return near.accepts(str(attribute)) is not condition.negative
        reached = self._checker.within(condition.variable, value, steps + int(condition.within))
        return (attribute in reached) is not condition.negative


def _steps(distance_s: float, stay_s: float, rounding: str) -> float:
    """Return the maximum number of moves of a client with stays of this length, counting unfinished stays."""
    if distance_s == 0 or stay_s == math.inf:
        return 0
    if stay_s == 0:
        return math.inf
    whole, rest = divmod(distance_s, stay_s)
    nearly = 1e-6 * stay_s
    if rest > stay_s - nearly:
        return whole + 1
    return whole + (1 if rounding == "up" and rest > nearly else 0)


def _number_may_be(
    condition: Own, attribute: Value, variable: NumberSteps, value: Value, steps: float
) -> bool:
    if isinstance(attribute, bool | str) or isinstance(value, str):
        return False
    low = max(value - variable.fall * steps, variable.lowest)
    high = min(value + variable.rise * steps, variable.highest)
    match condition.operator:
        case "<":
            return attribute < high
        case "<=":
            return attribute <= high
        case ">":
            return attribute > low
        case ">=":
            return attribute >= low
    return (low - condition.within <= attribute <= high + condition.within) is not condition.negative


def compare(
    story: Story,
    checker: LocationChecker,
    oracle: LocationChecker,
    blackout: dict[tuple[str, Identity], int],
) -> Iterator[tuple[str, str]]:
    """Return differences from flooding that the timing does not predict: kind and description.

    Predicted misses are put into `blackout`: client, notification and epoch.
    """
    timing = Timing(story, checker)
    for client, subscriptions in list(checker.subscriptions.items()):
        if not any(kept[0].filter.own for kept in subscriptions.values()):
            continue
        if [epoch.values for epoch in checker.epochs[client]] != [e.values for e in oracle.epochs[client]]:
            yield "other epochs", f"{client} has different epochs with flooding"
            continue
        got, owed = checker.deliveries[client], oracle.deliveries[client]
        predicted = dict(timing.blackout(client))
        blackout.update(((client, identity), epoch) for identity, epoch in predicted.items())
        if predicted and checker.is_in_time(client):
            yield "blackout", f"{client} is not too fast, and yet misses {sorted(predicted)}"
        for identity in got:
            if identity not in owed:
                yield "extra in epoch", f"{client} got {identity}, which it does not get with flooding"
        for identity in owed:
            if identity not in got and identity not in predicted:
                yield "missing in epoch", f"{client} never got {identity}, but would with flooding"
        for identity, epoch in predicted.items():
            if identity in got:
                yield "not as predicted", f"{client} got {identity} in epoch {epoch}, which is too late"
        if [one for one in owed if one in got] != list(got):
            yield "other order", f"{client} got its notifications in another order than with flooding"
