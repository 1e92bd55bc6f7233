"""MQTT clients in stories: what is kept of earlier findings, and a few seeds of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.simulator.fuzz import fuzz
from roamcast.simulator.mqtt_draw import draw_mqtt_story, protocols
from roamcast.simulator.story import Story, format_story, parse_story, violations_of

STORIES = sorted((Path(__file__).parent / "mqtt_stories").glob("*.txt"))
FAULTS = ("crash", "partition", "loss")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_that_once_broke_a_promise_keeps_it(path: Path) -> None:
    assert violations_of(parse_story(path.read_text(), path.name)) == []


@pytest.mark.parametrize("protocol", protocols())
def test_a_few_seeds_keep_every_promise(protocol: str) -> None:
    report = fuzz(protocol, range(4), faults=FAULTS, front="mqtt")
    assert report.failures == []
    assert report.deliveries > 100


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 300, 50))
@pytest.mark.parametrize("protocol", protocols())
def test_many_seeds_keep_every_promise(protocol: str, start: int) -> None:
    assert fuzz(protocol, range(start, start + 50), faults=FAULTS, front="mqtt").failures == []


def test_the_protocols_that_ship_are_among_those_that_are_drawn() -> None:
    assert {"multi_hop_handoff", "relocation", "proactive", "phoenix", "reactive:merged"} <= {*protocols()}


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_story_reads_as_the_same_story(seed: int) -> None:
    topology, settings, actions = draw_mqtt_story("multi_hop_handoff", seed, FAULTS)
    text = format_story(Story(topology, settings, tuple(actions)))
    assert format_story(parse_story(text)) == text


HEAD = "brokers b0-b1\nprotocol multi_hop_handoff\nfront mqtt\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("at 1 c attach b7", "no broker 'b7'"),
        ("at 1 c attach b0 version 3", "version '3': valid are 4, 5"),
        ("at 1 c attach b0 soon", "'soon' is not known; valid are clean"),
        ("at 1 c publish a qos 3", "valid are 0, 1 and 2"),
        ("at 1 c subscribe a/#/b", "a/#/b"),
        ("at 1 c leave b1", "`disconnect to b1`"),
        ("at 1 b0 limit memory 3", "limit name 'memory': valid are queue_max"),
        ("at 1 b0 rules deny c", "`deny CLIENT publish|subscribe|both TOPIC`"),
        ("at 1 b0 join b0", "no link to 'b0'"),
        ("queue_max many", "queue_max 'many'"),
    ],
)
def test_what_a_story_cannot_say_is_refused_with_its_line(line: str, words: str) -> None:
    with pytest.raises(InputError, match="line 4") as caught:
        parse_story(HEAD + line)
    assert words in str(caught.value)


def test_a_limit_that_is_read_again_holds_for_queues_that_exist() -> None:
    story = """
at 0 c attach b0
at 0 p attach b1
at 1 c subscribe a/# qos 1
at 2 c leave
at 2.5 b0 limit queue_max 2
at 3 p publish a/1 qos 1
at 4 p publish a/1 qos 1
at 5 p publish a/1 qos 1
at 6 c attach b0
"""
    result = parse_story(HEAD + story).judge()
    assert result.violations == []
    assert (result.lost, result.dropped) == (1, 1)
