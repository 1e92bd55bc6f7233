"""What each worker of a site is told, and how what they answer becomes one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast.cli.network import rows_of_sites
from roamcast.config.sections import Config, Quotas
from roamcast.daemon.config import load
from roamcast.daemon.siblings import merged, site_health, site_status
from roamcast.daemon.workers import Worker, gone, leaving, secret_file, siblings, worker_config

TWO = {"workers": "2"}


def site(folder: Path, **changes: Any) -> Config:
    return msgspec.structs.replace(Config(id="a", data=str(folder), workers=2), **changes)


def told(config: Config, number: int, count: int = 2) -> Config:
    return worker_config(config, Worker(number, count, (1883,), 1))


def test_the_first_is_the_broker_that_the_site_is(tmp_path: Path) -> None:
    config = told(site(tmp_path), 1)
    assert (config.id, config.data, config.listeners[0].port) == ("a", str(tmp_path), 1883)
    assert [(one.id, one.address) for one in config.peers] == [("a.2", "")]
    assert config.peers[0].secret_files == (str(secret_file(tmp_path)),)


def test_the_others_have_folders_of_their_own_and_one_link(tmp_path: Path) -> None:
    config = told(site(tmp_path), 2)
    assert (config.id, config.data) == ("a.2", str(tmp_path / "worker-2"))
    assert [(one.id, one.address) for one in config.peers] == [("a", f"unix:{tmp_path}/workers.socket")]
    assert config.events_folder == tmp_path / "events"
    assert not config.metrics.enabled
    assert config.link.port is None


def test_quotas_are_those_of_the_site() -> None:
    quotas = Quotas(sessions_max=7, connections_max=100, connections_per_address_max=None)
    parts = told(site(Path("data"), quotas=quotas), 2).quotas
    assert (parts.sessions_max, parts.connections_max, parts.connections_per_address_max) == (4, 50, None)
    assert parts.queue_bytes_max == quotas.queue_bytes_max, "of one client"
    assert parts.retained_bytes_max == quotas.retained_bytes_max, "kept by every worker"


def test_a_share_still_takes_the_largest_packet() -> None:
    quotas = Quotas(buffered_bytes_max=1_048_576)
    assert told(site(Path("data"), quotas=quotas), 1, 8).quotas.buffered_bytes_max == 1_048_576


def test_users_of_a_realm_are_known_to_all_workers() -> None:
    config = load(None, {}, {**TWO, "id": "a", "access.realm": "town", "access.realm_brokers": "b"})
    for number in (1, 2):
        assert told(config, number).access.realm_brokers == ("b", "a", "a.*")


def test_who_was_a_worker_before_leaves(tmp_path: Path) -> None:
    for name in ("worker-2", "worker-3", "worker-5", "worker-7.gone", "worker-x"):
        (tmp_path / name).mkdir()
    assert leaving(tmp_path, 2) == [3, 5]
    assert leaving(tmp_path, 1) == [2, 3, 5]
    assert gone(tmp_path) == [7]
    assert list(siblings(site(tmp_path))) == ["a.2", "a.3", "a.5"]
    assert told(site(tmp_path), 5).listeners == (), "nobody comes in there"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"workers": "0"}, "valid is an integer from 1 to 64"),
        ({"id": "a" * 63}, "valid are 64 characters"),
        ({"replication.name": "one"}, "a replicated site has one process"),
        ({"mobility.protocol": "mft"}, "mobility.protocol = mft has one process"),
        ({"journal.folder": "elsewhere"}, "leave out journal.folder"),
        ({"id": "a", "peer": [{"id": "a.7"}], "link.port": "0"}, "workers of a have such ids"),
        ({"id": "a", "access.http.url": "http://127.0.0.1:1/"}, 'set access.realm, as in access.realm = "a"'),
    ],
)
def test_what_workers_cannot_do_is_refused_in_one_line(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=r".+") as refused:
        load(None, {}, {**TWO, **settings})
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


PAGE = """\
# HELP some_total What is counted.
# TYPE some_total counter
some_total{qos="0"} 1.0
# HELP alone One figure.
# TYPE alone gauge
alone 2.0
"""


def test_one_page_of_metrics_says_which_worker_it_is() -> None:
    assert merged({"a": PAGE, "a.2": PAGE.replace("1.0", "5.0")}) == (
        "# HELP some_total What is counted.\n"
        "# TYPE some_total counter\n"
        'some_total{worker="a",qos="0"} 1.0\n'
        'some_total{worker="a.2",qos="0"} 5.0\n'
        "# HELP alone One figure.\n"
        "# TYPE alone gauge\n"
        'alone{worker="a"} 2.0\n'
        'alone{worker="a.2"} 2.0\n'
    )


def status(broker: str, journal: str = "ok") -> dict[str, Any]:
    return {
        "broker": broker, "uptime_s": 1, "connections": 2, "sessions": 3, "queued": 4, "journal": journal,
        "fail_stops": 1, "process": 17, "kept_out": [f"a client at {broker}"],
    }  # fmt: skip


def test_one_status_has_the_sums_and_a_row_for_each() -> None:
    away = {"error": "no answer (Connection refused)", "is_away": True}
    answer = site_status(status("a"), {"a.2": status("a.2", "the disk is full"), "a.3": away})
    assert (answer["connections"], answer["sessions"], answer["queued"]) == (4, 6, 8)
    assert answer["journal"] == "a.2: the disk is full"
    assert (answer["fail_stops"], answer["kept_out"]) == (2, ["a client at a", "a client at a.2"])
    assert [(one["worker"], one["up"]) for one in answer["workers"]] == [
        ("a", True),
        ("a.2", True),
        ("a.3", False),
    ]
    assert answer["workers"][2]["why"] == "no answer (Connection refused)"


def test_one_row_for_a_site_or_one_for_each_worker() -> None:
    def row(id: str, site: str, **changes: Any) -> dict[str, Any]:
        return {"id": id, "site": site, "up": True, "attached": 1, "sessions": 2, "queued": 3, **changes}

    workers = [row("a", "a", journal="ok"), row("a.2", "a", up=False, journal="the disk is full")]
    first, second = rows_of_sites([*workers, row("b", "", journal="ok")])
    assert (first["id"], first["sessions"], first["up"]) == ("a", 4, False)
    assert (first["journal"], second["id"], second["sessions"]) == ("the disk is full", "b", 2)


def test_a_site_is_failing_if_a_worker_that_answers_is() -> None:
    away, failing = {"error": "no answer"}, {"health": {"status": "failing"}}
    assert site_health({"status": "ok"}, {"a.2": away})["status"] == "ok"
    assert site_health({"status": "ok"}, {"a.2": failing})["status"] == "failing"
    assert site_health({"status": "failing"}, {"a.2": {"health": {"status": "ok"}}})["status"] == "failing"
