"""/healthz, $SYS/broker/… and parts of `roamcast broker status`: the broker's report about itself."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from roamcast import __version__
from roamcast.broker.contract import AnyMachine
from roamcast.broker.links.links import Offer
from roamcast.daemon.figures import BrokerFigures
from roamcast.daemon.http import Answer, as_json

SYS = "$SYS/broker"


def health(figures: BrokerFigures) -> dict[str, Any]:
    """Report healthy if clients can connect and acknowledgements are given; links that are down are only
    named."""
    engine = figures.engine
    refusal = engine.site.history.refusal
    is_well = engine.is_promising and figures.is_listening() and not refusal
    return (
        {
            "status": "ok" if is_well else "failing",
            "broker": engine.site.id,
            "journal": "ok" if engine.is_promising else engine.failure,
            "history": refusal or "ok",
            "listening": figures.is_listening(),
            "links_down": {link.peer: link.why for link in figures.links() if not link.is_up},
            "detours": {link.peer: link.over for link in figures.links() if link.over},
            "away": figures.away(),
        }
        | fail_stops_of(figures)
        | tree_of(figures)
    )


def health_page(told: dict[str, Any]) -> Answer:
    """Return status 200 if the broker is healthy."""
    return as_json(told, HTTPStatus.OK if told["status"] == "ok" else HTTPStatus.SERVICE_UNAVAILABLE)


def history_of(site: AnyMachine, refused: Mapping[str, tuple[Offer, str]]) -> dict[str, object]:
    """Return the broker's history: its position, why it may not continue, and the peers whose history it
    refuses."""
    history = site.history
    return {
        "epoch": history.epoch,
        "position": history.position,
        "refusal": history.refusal or "ok",
        "refused": {peer: why for peer, (_, why) in refused.items()},
        "known": {
            peer: {"epoch": seen.epoch, "position": seen.position} for peer, seen in history.known.items()
        },
    }


def fail_stops_of(figures: BrokerFigures) -> dict[str, object]:
    """Return how often a turn raised, and who is kept out for it."""
    out = [msgspec.structs.asdict(one) for one in figures.kept_out.now().values()]
    return {"fail_stops": figures.kept_out.fail_stops, "kept_out": out}


def tree_of(figures: BrokerFigures) -> dict[str, object]:
    """Describe the tree for people and programs; empty if links are permanent."""
    tree = figures.engine.site.tree
    return {} if tree is None else {"tree": msgspec.structs.asdict(tree)}


def announcements(figures: BrokerFigures) -> dict[str, str]:
    """Map topics to values, with the topic names that Mosquitto established where they fit."""
    site, queues = figures.engine.site, figures.queues()
    attached, sessions, traffic = figures.attached(), site.session_count, site.endpoint.traffic
    values: dict[str, object] = {
        "version": f"roamcast version {__version__}",
        "uptime": f"{figures.uptime_s:.0f} seconds",
        "clients/connected": attached,
        "clients/disconnected": sessions - attached,
        "clients/total": sessions,
        "messages/received": sum(traffic.received),
        "messages/sent": sum(traffic.sent),
        "messages/stored": sum(queues.notifications),
        "store/messages/count": sum(queues.notifications),
        "store/messages/bytes": queues.size_bytes,
        "publish/messages/received": sum(traffic.received),
        "publish/messages/sent": sum(traffic.sent),
        "publish/messages/dropped": sum(figures.dropped().values()),
        "retained messages/count": site.retained_count,
        "subscriptions/count": figures.subscriptions(),
        "heap/maximum": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "roamcast/id": site.id,
        "roamcast/handoffs/finished": figures.handoffs()["finished"],
    }
    if site.tree is not None:
        tree = site.tree
        values |= {f"roamcast/{name}": value for name, value in msgspec.structs.asdict(tree).items()}
        values["roamcast/children"] = " ".join(tree.children)
    for link in figures.links():
        values[f"connection/{link.peer}/state"] = int(link.is_up)
    return {f"{SYS}/{name}": str(value) for name, value in values.items()}


def memory_bytes() -> int:
    """Return the resident memory of this process; its peak where the system does not report the current
    value."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
