"""Checks that an adapter implements `adapter.py`: tests with a real broker, for authors of adapters.

    asyncio.run(check_adapter(lambda: open_adapter("mine", "mine://127.0.0.1:1234")))

Each story uses two adapters at one broker, as two processes would, and its own names and topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from roamcast.proxy.adapter import Adapter, AdapterError, ForeignMessage

WAIT_S = 10.0
STORY_S = 4 * WAIT_S

Story = Callable[[Adapter, Adapter], Awaitable[None]]


class NotKept(Exception):
    """Raised if an adapter breaks a promise; the text says which."""


async def check_adapter(make: Callable[[], Adapter], stories: Iterable[Story] | None = None) -> list[str]:
    """Run the stories; return their names. Raise NotKept at the first broken promise."""
    told = []
    for story in stories if stories is not None else STORIES:
        one, other = make(), make()
        await one.open()
        await other.open()
        try:
            async with asyncio.timeout(STORY_S):
                await story(one, other)
        finally:
            await one.close()
            await other.close()
        told.append(getattr(story, "__name__", "a story"))
    return told


async def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not is_so():
        if asyncio.get_running_loop().time() > deadline:
            raise NotKept(f"{what}: not within {WAIT_S:g} s")
        await asyncio.sleep(0.005)


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise NotKept(f"{what}: {str(found)[:300]} instead of {str(wanted)[:300]}")


def bodies(messages: Iterable[ForeignMessage]) -> list[bytes]:
    return [message.body for message in messages]


def numbered(topic: str, count: int) -> list[ForeignMessage]:
    return [ForeignMessage(topic, b"%d" % number) for number in range(count)]


async def refused(work: Awaitable[object], what: str) -> None:
    try:
        await work
    except AdapterError:
        return
    raise NotKept(f"{what} raises no AdapterError")


# --- the stories ---


async def messages_come_whole_in_order_and_with_their_identity(one: Adapter, other: Adapter) -> None:
    got: list[ForeignMessage] = []
    topic = one.topic_of(["whole", "x-1"])
    await one.subscribe("whole", topic, got.append)
    sent = [
        ForeignMessage(topic, bytes(range(256)), {"colour": "blå: \\ x"}, "p-1"),
        ForeignMessage(topic, b"", {}, "empty"),
        *[ForeignMessage(topic, b"%d" % number, {}, f"n-{number}") for number in range(20)],
    ]
    for message in sent:
        await other.publish(message)
    await until(lambda: len(got) >= len(sent), "everything published arrives")
    expect(got, sent, "messages come as they were published")
    await one.unsubscribe("whole", topic)


async def publishes_go_out_in_the_order_of_the_calls(one: Adapter, other: Adapter) -> None:
    """Publishes keep the order of the calls, even if nobody waits between two calls."""
    got: list[ForeignMessage] = []
    topic = one.topic_of(["calls", "order"])
    await one.subscribe("order", topic, got.append)
    sent = numbered(topic, 100)
    await asyncio.gather(*(other.publish(message) for message in sent))
    await until(lambda: len(got) >= 100, "everything published arrives")
    expect(bodies(got), bodies(sent), "publishes that are begun together keep the order of the calls")
    await one.unsubscribe("order", topic)


async def what_was_sent_before_unsubscribing_is_received_before_it_returns(
    one: Adapter, other: Adapter
) -> None:
    got: list[ForeignMessage] = []
    topic = one.topic_of(["before", "end"])
    await one.subscribe("leaver", topic, got.append)
    for message in numbered(topic, 200):
        await one.publish(message)
    await one.unsubscribe("leaver", topic)
    received = len(got)
    await other.publish(ForeignMessage(topic, b"late"))
    # A subscription made afterwards gets neither this message nor earlier ones.
    await one.subscribe("leaver", topic, got.append)
    await other.publish(ForeignMessage(topic, b"again"))
    await until(lambda: b"again" in bodies(got), "a message published after subscribing again arrives")
    wanted = [*(b"%d" % number for number in range(received)), b"again"]
    expect(bodies(got), wanted, "nothing comes for a subscription that has ended")
    await one.unsubscribe("leaver", topic)


async def a_suspended_name_gets_everything_when_it_resumes(one: Adapter, other: Adapter) -> None:
    topic = one.topic_of(["sleep", "er"])
    if not one.can_suspend:
        await refused(one.suspend("sleeper"), "suspend, without can_suspend,")
        return
    got: list[ForeignMessage] = []
    await one.subscribe("sleeper", topic, got.append)
    await other.publish(ForeignMessage(topic, b"awake"))
    await until(lambda: len(got) == 1, "a published message arrives")
    await one.suspend("sleeper")
    for message in numbered(topic, 50):
        await other.publish(message)
    expect(len(got), 1, "nothing comes while a name is suspended")
    expect(await one.resume("sleeper", (topic,), got.append), True, "resume says that the name was kept")
    await until(lambda: len(got) >= 51, "kept messages arrive")
    expect(bodies(got), [b"awake", *bodies(numbered(topic, 50))], "kept messages arrive once and in order")
    await one.unsubscribe("sleeper", topic)


async def another_process_continues_or_ends_what_one_left(one: Adapter, other: Adapter) -> None:
    if not one.can_suspend:
        return
    got: list[ForeignMessage] = []
    topic = one.topic_of(["left", "behind"])
    for name in ("heir", "dead"):
        await one.subscribe(name, topic, got.append)
    await one.close()
    for message in numbered(topic, 10):
        await other.publish(message)
    expect(await other.resume("heir", (topic,), got.append), True, "resume says that the name was kept")
    await until(lambda: len(got) >= 10, "messages kept for another process arrive")
    expect(bodies(got), bodies(numbered(topic, 10)), "kept messages arrive once and in order")
    await other.unsubscribe("heir", topic)
    await other.unsubscribe("dead", topic)
    await other.subscribe("dead", topic, got.append)
    await other.publish(ForeignMessage(topic, b"new"))
    await until(lambda: b"new" in bodies(got), "a published message arrives")
    # Some brokers keep messages queued under a name; but no new ones were added.
    expect(bodies(got)[10:].count(b"new"), 1, "an ended subscription adds nothing")
    await other.unsubscribe("dead", topic)


async def filters_of_several_names_do_not_disturb_each_other(one: Adapter, other: Adapter) -> None:
    got: dict[str, list[ForeignMessage]] = {"ann": [], "ben": []}
    topics = [one.topic_of(["several", level]) for level in ("x", "y")]
    # Calls for one name may run concurrently.
    await asyncio.gather(*(one.subscribe("ann", topic, got["ann"].append) for topic in topics))
    await one.subscribe("ben", topics[1], got["ben"].append)
    await one.subscribe("ben", topics[1], got["ben"].append)
    await one.unsubscribe("ann", topics[1])
    for number in range(5):
        for topic in topics:
            await other.publish(ForeignMessage(topic, b"%d" % number))
    await until(lambda: len(got["ann"]) >= 5 and len(got["ben"]) >= 5, "each name gets its own")
    came = {name: [(one.topic, one.body) for one in messages] for name, messages in got.items()}
    wanted = {
        name: [(topic, b"%d" % number) for number in range(5)]
        for name, topic in zip(("ann", "ben"), topics, strict=True)
    }
    expect(came, wanted, "each name gets what its filters ask for, once")
    await one.unsubscribe("ann", topics[0])
    await one.unsubscribe("ben", topics[1])
    await one.unsubscribe("nobody", topics[0])


async def nothing_works_while_not_open(one: Adapter, other: Adapter) -> None:
    await one.close()
    topic = one.topic_of(["not", "open"])
    await refused(one.publish(ForeignMessage(topic, b"")), "publish, while not open,")
    await refused(one.subscribe("closed", topic, print), "subscribe, while not open,")


STORIES: tuple[Story, ...] = (
    messages_come_whole_in_order_and_with_their_identity,
    publishes_go_out_in_the_order_of_the_calls,
    what_was_sent_before_unsubscribing_is_received_before_it_returns,
    a_suspended_name_gets_everything_when_it_resumes,
    another_process_continues_or_ends_what_one_left,
    filters_of_several_names_do_not_disturb_each_other,
    nothing_works_while_not_open,
)
