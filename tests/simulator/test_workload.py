"""Workloads: the selectivity that is claimed is the one that is counted."""

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.simulator.workload import KINDS, Workload, make_workload, publish_times


def names(count: int) -> list[str]:
    return [f"c{i:04}" for i in range(count)]


def make(kind: str, count: int = 60, selectivity: float = 0.25, seed: int = 1) -> Workload:
    return make_workload(kind, names(count), selectivity, random.Random(seed))


def match_counts(workload: Workload) -> list[int]:
    """For every notification there is, the clients that it matches, counted one by one."""
    filters = list(workload.filters.values())
    return [
        sum(any(one.matches(attributes) for one in held) for held in filters)
        for attributes in workload.universe
    ]


def counted_selectivity(workload: Workload) -> float:
    counts = match_counts(workload)
    return sum(counts) / (len(counts) * len(workload.filters))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("selectivity", [1.0, 0.5, 0.25, 0.0625])
def test_stated_selectivity_is_the_counted_one(kind: str, selectivity: float) -> None:
    workload = make(kind, 48, selectivity)
    assert counted_selectivity(workload) == pytest.approx(workload.selectivity, abs=1e-9)
    wanted = 0.2 if kind == "gaddah" else selectivity
    # Half of a step: a client, a value of `nested`, or a range step of `mixed`, over all clients.
    assert workload.selectivity == pytest.approx(
        wanted, abs={"nested": 0.0005, "mixed": 0.008}.get(kind, 1e-9) / 48
    )
    assert list(workload.filters) == names(48)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["ranges", "nested", "mixed"]),
    st.integers(1, 40),
    st.floats(0.02, 1.0),
    st.integers(0, 2**32),
)
def test_selectivity_holds_for_any_share(kind: str, count: int, selectivity: float, seed: int) -> None:
    if kind == "ranges" and round(selectivity * count) == 0:
        return
    workload = make(kind, count, selectivity, seed)
    assert counted_selectivity(workload) == pytest.approx(workload.selectivity, abs=1e-9)
    step = {"ranges": 0.5, "nested": 0.0005, "mixed": 0.0081}[kind]
    assert abs(workload.selectivity - selectivity) <= step / count + 1e-9


def test_groups_are_dealt_evenly_and_apart() -> None:
    workload = make("groups", 50, 1 / 16)
    counts = match_counts(workload)
    assert sorted(set(counts)) == [3, 4]
    assert sum(counts) == 50
    texts = list(dict.fromkeys(workload.filters.values()))
    assert len(texts) == 16
    assert workload.universe[7] == {"group": "g07"}


def test_groups_may_outnumber_the_clients() -> None:
    workload = make("groups", 3, 0.1)
    assert sorted(match_counts(workload)) == [0] * 7 + [1] * 3
    assert workload.selectivity == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("count", "selectivity", "matching"), [(250, 0.0625, 16), (37, 0.3, 11), (9, 1.0, 9), (1, 0.6, 1)]
)
def test_every_notification_of_ranges_matches_the_same_number(
    count: int, selectivity: float, matching: int
) -> None:
    workload = make("ranges", count, selectivity)
    assert set(match_counts(workload)) == {matching}
    assert f"exactly {matching} of {count} clients" in workload.description


def test_nested_ranges_are_often_covered() -> None:
    workload = make("nested", 64, 0.1)
    filters = [held[0] for held in workload.filters.values()]
    covered = sum(any(a is not b and a.covers(b) for a in filters) for b in filters)
    assert covered >= 56  # All but the longest of each of the 8 families.
    sizes = {sum(one.matches(attributes) for attributes in workload.universe) for one in filters}
    assert min(sizes) == 10
    assert max(sizes) == 190


def test_gaddah_takes_a_random_fifth() -> None:
    workload = make("gaddah", 400, 0.2)
    starts = set()
    for (one,) in workload.filters.values():
        matching = [attributes["selector"] for attributes in workload.universe if one.matches(attributes)]
        assert len(matching) == 20
        assert matching == list(range(int(matching[0]), int(matching[0]) + 20))
        starts.add(matching[0])
    assert len(workload.universe) == 100
    assert len(starts) > 70
    assert starts <= set(range(81))


def test_mixed_uses_several_attributes_and_operators() -> None:
    for selectivity in (0.05, 0.6):
        texts = " ".join(held[0].text for held in make("mixed", 200, selectivity).filters.values())
        assert all(
            word in texts for word in ("kind", "level", "urgent", "value", "IN", "LIKE", "<", ">", "=")
        )


def test_clients_with_the_same_filter_share_it() -> None:
    workload = make("groups", 40, 0.25)
    assert len({id(held[0]) for held in workload.filters.values()}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_draw_is_uniform_and_cheap(kind: str) -> None:
    workload = make(kind, 20, 0.25)
    rng = random.Random(5)
    draws = 40 * len(workload.universe)
    started = time.process_time()
    drawn = [workload.draw(rng) for _ in range(draws)]
    assert time.process_time() - started < 3e-6 * draws + 0.01
    counts = Counter(map(id, drawn))
    assert len(counts) == len(workload.universe)
    assert all(8 <= count <= 90 for count in counts.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    def texts(seed: int) -> list[str]:
        return [one.text for held in make(kind, seed=seed).filters.values() for one in held]

    assert texts(1) == texts(1) != texts(2)


def test_same_in_a_process_with_other_string_hashes() -> None:
    code = (
        "import random; from roamcast.simulator.workload import KINDS, make_workload as m;"
        "w = [m(k, ['a', 'b', 'c', 'd'], 0.25, random.Random(5)) for k in KINDS];"
        "print([(c, f[0].text) for x in w for c, f in x.filters.items()]);"
        "print([x.draw(random.Random(3)) for x in w])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != ""


@pytest.mark.parametrize(
    ("kind", "clients", "selectivity", "expected"),
    [
        ("group", ["a"], 0.5, "workload 'group': unknown; did you mean 'groups'?"),
        ("groups", ["a"], 0.0, "selectivity must be above 0 and at most 1, not 0.0"),
        ("groups", ["a"], 1.01, "selectivity must be above 0"),
        ("gaddah", ["a"], -1.0, "selectivity must be above 0"),
        ("ranges", ["a"], float("nan"), "selectivity must be above 0"),
        (
            "groups",
            ["a"],
            0.3,
            "is not 1 divided by a whole number; valid are 1, 0.5, 0.25, 0.2 and so on, or the workload ",
        ),
        ("groups", ["a"], 1e-5, "too small; at least 0.0001"),
        (
            "ranges",
            ["a", "b"],
            0.1,
            "selectivity 0.1 of 2 clients is less than one client; give at least 0.5",
        ),
        ("nested", ["a"], 0.001, "too small; give at least 0.01"),
        ("mixed", ["a"], 0.001, "too small; give at least 0.02"),
        ("mixed", [], 0.5, "there are no clients"),
        ("mixed", ["a", "b", "a"], 0.5, "client 'a' is given twice"),
    ],
)
def test_bad_settings_are_refused_with_one_line(
    kind: str, clients: list[str], selectivity: float, expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        make_workload(kind, clients, selectivity, random.Random(1))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_exponential_times_are_a_poisson_process() -> None:
    times = publish_times(5.0, 100_000.0, random.Random(1))
    assert len(times) == pytest.approx(20_000, rel=0.03)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert sum(gap < 5.0 * 0.6931 for gap in gaps) / len(gaps) == pytest.approx(0.5, abs=0.02)


def test_times_rise_within_the_duration() -> None:
    times = publish_times(0.3, 60.0, random.Random(4))
    assert times == publish_times(0.3, 60.0, random.Random(4))
    assert all(a < b for a, b in itertools.pairwise([0.0, *times, 60.0]))
    assert publish_times(1e6, 1e-3, random.Random(4)) == []


@pytest.mark.parametrize(
    ("every_s", "duration_s", "expected"),
    [
        (0.0, 1.0, "every_s must be a number of seconds above 0, not 0.0"),
        (1.0, float("nan"), "duration_s must be a number of seconds above 0"),
        (1e-9, 1e9, "more than 10,000,000 notifications"),
    ],
)
def test_bad_times_are_refused_with_one_line(every_s: float, duration_s: float, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        publish_times(every_s, duration_s, random.Random(1))
    assert expected in str(caught.value)
