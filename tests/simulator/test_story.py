"""Stories: what is written can be read, what is wrong is named with its line, what fails is shortened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.mobility import PROTOCOLS, Settings
from roamcast.protocol.effects import (
    AdvertiseThat,
    AttachTo,
    LeaveFor,
    PublishThis,
    SubscribeTo,
    UnadvertiseThat,
    UnsubscribeFrom,
)
from roamcast.protocol.notification import decode_attributes, encode_attributes
from roamcast.simulator.faults import Crash, Cut, Heal, Restart
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.links import Delay
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.story import Story, format_story, parse_story, shrink, violations_of

HEAD = "brokers b0-b1 b1-b2\n"


def rounded(story: Story) -> list[Action]:
    return [(round(at, 6), client, item) for at, client, item in story.actions]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PROTOCOLS)), st.integers(0, 10**6))
def test_drawn_stories_are_read_as_they_were_written(protocol: str, seed: int) -> None:
    story = draw_story(protocol, seed)
    text = format_story(story)
    again = parse_story(text)
    assert format_story(again) == text
    assert again.settings == story.settings
    assert list(again.actions) == rounded(story)
    assert sorted(again.topology.overlay) == sorted(story.topology.overlay)
    for broker in story.topology.brokers:
        assert again.topology.peers(broker) == story.topology.peers(broker)


def test_a_story_that_is_read_again_runs_the_same() -> None:
    for seed in (1, 6, 9):
        first = parse_story(format_story(draw_story("durable", seed)))
        second = parse_story(format_story(first))
        assert first.run().result == second.run().result


ON_ONE_LINE = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=8)


@given(st.text(max_size=8), ON_ONE_LINE, st.integers(-5, 5) | st.floats(allow_nan=False) | st.booleans())
def test_any_attribute_and_any_filter_can_be_told(text: str, wanted: str, value: float) -> None:
    quoted = wanted.replace("'", "''")
    doings = (
        PublishThis(encode_attributes({"text": text, "value": value})),
        SubscribeTo(parse(f"text = '{quoted}'").text),
    )
    story = replace(parse_story(HEAD), actions=tuple((1.0, "c", item) for item in doings))
    assert parse_story(format_story(story)).actions == story.actions


def test_every_verb_and_setting_is_read() -> None:
    story = parse_story(
        """
        # A comment, and a line with nothing in it:

        brokers b0-b1 b1-b2
        protocol durable
        routing covering
        advertisements True
        link 0.001..0.03
        access 0.5
        notice 0..2
        window 7
        names_last_broker False
        access_bits_per_s 9600
        service_s 0.25
        buffer_bytes 1000
        seed 42
        at 3 c leave
        at 1 c attach b0   # the order of lines does not matter
        at 2 c leave b1
        at 4 c publish {"x": 1, "y": "#1 'a' # b"}
        at 5 c subscribe  x  >  1   AND y = '# it''s'
        at 6 c unsubscribe x > 1
        at 7 c advertise TRUE
        at 8 c unadvertise TRUE
        at 9 c publish 3 {}
        loss 0.125
        at 10 b0 crash
        at 11 b0 restart
        at 12 b0 crash unsent
        at 13 b1 cut b2
        at 14 b1 heal b2
        """
    )
    assert story.settings == NetworkSettings(
        protocol="durable",
        routing="covering",
        advertisements=True,
        link_delay=Delay(0.001, 0.03),
        access_delay=Delay(0.5, 0.5),
        notice_delay=Delay(0, 2),
        window=7,
        names_last_broker=False,
        access_bits_per_s=9600.0,
        service_s=0.25,
        buffer_bytes=1000,
        loss=0.125,
        seed=42,
    )
    assert story.topology.brokers == ("b0", "b1", "b2")
    assert [item for _, _, item in story.actions] == [
        AttachTo("b0", 0),
        LeaveFor("b1"),
        LeaveFor(),
        PublishThis(encode_attributes({"x": 1, "y": "#1 'a' # b"})),
        SubscribeTo(parse("x > 1 AND y = '# it''s'").text),
        UnsubscribeFrom("x > 1"),
        AdvertiseThat("TRUE"),
        UnadvertiseThat("TRUE"),
        PublishThis(encode_attributes({}), (b"", b"", b"")),
        Crash(),
        Restart(),
        Crash(unsent=True),
        Cut("b2"),
        Heal("b2"),
    ]
    assert parse_story(format_story(story)) == story


def test_a_single_broker_needs_no_link() -> None:
    assert parse_story("brokers b0\n").topology.brokers == ("b0",)
    assert format_story(parse_story("brokers b0\n")).startswith("brokers b0\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("protocl durable", "'protocl' is not known: valid are brokers, at, front, protocol"),
        ("at", "expected `at SECONDS CLIENT VERB …`"),
        ("at 1 c", "expected `at SECONDS CLIENT VERB …`"),
        ("at soon c leave", "soon"),
        ("at -1 c leave", "at -1: valid is a time from 0 on"),
        ("at nan c leave", "at nan: valid is a time from 0 on"),
        ("at inf c leave", "at inf: valid is a time from 0 on"),
        ("at 1 c jump b0", "'jump': valid are attach, leave, publish"),
        ("at 1 c attach", "attach: the broker is missing"),
        ("at 1 c attach b9", "there is no broker 'b9'; valid are b0, b1, b2"),
        ("at 1 c leave b9", "there is no broker 'b9'; valid are b0, b1, b2"),
        ("at 1 c subscribe x >", "selector, position 4"),
        ("at 1 c subscribe", "selector"),
        ("at 1 c publish x=1", "valid is a JSON object, or a number and a JSON object"),
        ("at 1 c publish 5", "valid is a JSON object, or a number and a JSON object"),
        ("at 1 c publish [1]", "valid is a JSON object, or a number and a JSON object"),
        ("at 1 c publish -1 {}", "valid is a JSON object, or a number and a JSON object"),
        ("at 1 c publish 0 {}", "valid is a JSON object, or a number and a JSON object"),
        ("at 1 c publish {x: 1}", "Expecting property name"),
        ('at 1 c publish {"x": null}', "valid are names with str, 64-bit int, float or bool"),
        ('at 1 c publish {"x": 99999999999999999999}', "valid are names with str, 64-bit int, float or bool"),
        ("at 1 c crash", "there is no broker 'c'; valid are b0, b1, b2"),
        ("at 1 b0 crash soon", "crash: 'soon' is not known; valid are unsent, amnesia, torn"),
        ("at 1 b0 restart b1", "restart: 'b1' is not known; valid are no more words"),
        ("at 1 b0 cut", "cut '': expected cut PEER"),
        ("at 1 b0 heal b2", "b0 has no link to 'b2'; valid are b1"),
        ("at 1 b9 cut b0", "there is no broker 'b9'; valid are b0, b1, b2"),
        ("loss 1", "loss 1: valid is a number from 0 to below 1"),
        ("loss some", "some"),
        ("heartbeat_period_s often", "heartbeat_period_s 'often': Expected `float | null`"),
        ("neighbours_max 1.5", "neighbours_max '1.5': Expected `int | null`"),
        ("delay_bound_s 1", "'delay_bound_s' is not known: valid are brokers, at, front, protocol"),
        ("link slow", "delay 'slow'"),
        ("window many", "many"),
        ("advertisements yes", "advertisements 'yes': valid are True and False"),
        ("brokers b0-b1-b2", "an edge is two names joined by one `-`"),
        ("brokers b0-b1 b1-b0", ""),
        ("brokers b0-b1 b2-b3", ""),
        ("brokers", ""),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line: str, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_story(f"# A story.\n{HEAD}at 0 c attach b0\n{line}\nat 9 c leave\n", "a.txt")
    assert str(refusal.value).startswith("a.txt, line 4: ")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_story_without_brokers_is_refused() -> None:
    with pytest.raises(InputError, match="story: the line `brokers a-b b-c …` is missing"):
        parse_story("at 1 c leave\n")


def test_who_is_away_at_the_end_comes_home() -> None:
    comings = "at 0 c attach b0\nat 0 d attach b1\nat 1 c leave\nat 2 d leave b2\nat 3 d attach b2\n"
    story = parse_story(HEAD + comings + "at 4 e leave\n")
    assert list(story.with_homecoming())[len(story.actions) :] == [(5.0, "c", AttachTo("b0", 0))]


# --- shrinking ---


def counting_story(count: int) -> Story:
    text = "".join(f'at {place} c publish {{"x": {place}}}\n' for place in range(count))
    return parse_story(HEAD + text)


def numbers(story: Story) -> set[int]:
    return {
        int(decode_attributes(item.attributes)["x"])
        for _, _, item in story.actions
        if isinstance(item, PublishThis)
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_what_is_left_is_minimal(count: int, data: st.DataObject) -> None:
    """It fails if some are there together: then exactly these are left."""
    needed = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=6))
    short = shrink(counting_story(count), lambda story: needed <= numbers(story))
    assert numbers(short) == needed
    assert [item for _, _, item in short.actions] == [
        PublishThis(encode_attributes({"x": place})) for place in sorted(needed)
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 8))
def test_no_single_action_can_be_left_out_of_what_is_left(count: int, modulus: int) -> None:
    """A failure that is not monotonous: leaving out more may make it fail no longer, or again."""

    def fails(story: Story) -> bool:
        return sum(numbers(story)) % modulus == sum(range(count)) % modulus and bool(story.actions)

    short = shrink(counting_story(count), fails)
    assert fails(short)
    for place in range(len(short.actions)):
        fewer = replace(short, actions=short.actions[:place] + short.actions[place + 1 :])
        assert not (fewer.actions and fails(fewer))


def test_what_can_be_set_for_a_protocol_is_read_and_becomes_simple_where_it_does_not_matter() -> None:
    story = parse_story(
        """
        brokers b0-b1
        heartbeat_period_s 0.5
        context_timeout_s none
        neighbours_directed True
        neighbours_max 3
        neighbour_graph {"brokers": {"b0": {"b1": {"probability": 1}}}}
        at 1 c attach b0
        """
    )
    assert story.settings.mobility == Settings(
        heartbeat_period_s=0.5,
        context_timeout_s=None,
        neighbours_directed=True,
        neighbours_max=3,
        neighbour_graph='{"brokers": {"b0": {"b1": {"probability": 1}}}}',
    )
    assert parse_story(format_story(story)) == story
    short = shrink(story, lambda one: one.settings.mobility.neighbours_max == 3)
    assert short.settings.mobility == Settings(neighbours_max=3)


def test_settings_become_simple_where_they_do_not_matter() -> None:
    complicated = NetworkSettings(
        routing="covering", window=2, link_delay=Delay(0, 1), names_last_broker=False, buffer_bytes=5, seed=3
    )
    story = replace(counting_story(8), settings=complicated)
    short = shrink(story, lambda one: one.settings.window == 2 and 3 in numbers(one))
    assert short.settings == NetworkSettings(window=2, seed=3)
    assert numbers(short) == {3}


def test_fewer_actions_may_allow_simpler_settings() -> None:
    """Only without the first action do the settings not matter, and so on."""

    def fails(story: Story) -> bool:
        return 5 in numbers(story) and (story.settings.window == 2 or 0 not in numbers(story))

    story = replace(counting_story(8), settings=NetworkSettings(window=2))
    short = shrink(story, fails)
    assert (numbers(short), short.settings) == ({5}, NetworkSettings())


def test_a_story_that_breaks_nothing_has_no_violations() -> None:
    assert violations_of(parse_story(HEAD + "at 0 c attach b0\n")) == []
