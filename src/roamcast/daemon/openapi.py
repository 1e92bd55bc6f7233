"""The OpenAPI description of the HTTP API."""

from __future__ import annotations

from functools import cache
from typing import Any

from roamcast import __version__

NUMBER, INTEGER, TEXT, BOOLEAN = (
    {"type": "number"}, {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
)  # fmt: skip


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


ANY_OBJECT = {"type": "object"}
PERCENTILES = _or_null(_object(p50=NUMBER, p99=NUMBER))
POSITION = {"lat": _or_null(NUMBER), "lon": _or_null(NUMBER)}
RATES = {"received_per_s": NUMBER, "delivered_per_s": NUMBER, "handoffs_per_s": NUMBER}
BROKER = _object(
    id=TEXT, up=BOOLEAN, **POSITION, version=TEXT, uptime_s=NUMBER, connections=INTEGER, sessions=INTEGER,
    attached=INTEGER, subscriptions=INTEGER, queued=INTEGER, queued_bytes=INTEGER, memory_bytes=INTEGER,
    cpu=NUMBER, journal=TEXT, role={"enum": ["single", "leader"]}, lag=NUMBER, site=TEXT,
    rates=_object(**RATES), latency_ms=PERCENTILES, handoff_ms=PERCENTILES,
)  # fmt: skip
CLIENT = _object(
    id=TEXT, broker=TEXT, attached=BOOLEAN, queued=INTEGER, **POSITION, predicted=_list(TEXT)
)  # fmt: skip
SUBSCRIPTION = _object(filter=TEXT, qos=INTEGER, selector=_or_null(TEXT), group=_or_null(TEXT))
MOVE = {"type": "object", "properties": {"at": NUMBER, "from": TEXT, "to": TEXT, "duration_ms": NUMBER}}
DETAIL = _object(
    **CLIENT["properties"], owner=TEXT, protocol=TEXT, subscriptions=_list(SUBSCRIPTION),
    subscription_count=INTEGER, queued_bytes=INTEGER, inflight=INTEGER, expires_s=INTEGER, since=NUMBER,
    moves=_list(MOVE), text=_list(TEXT),
)  # fmt: skip
HANDOFF = {
    "type": "object",
    "properties": {**MOVE["properties"], "client": TEXT, "moved": INTEGER},  # type: ignore[dict-item]
}
FIGURES = _object(
    owed=INTEGER, delivered=INTEGER, queued=INTEGER, lost=INTEGER, repeated=INTEGER,
    given_up={"type": "object", "additionalProperties": INTEGER}, **RATES, handoff_ms=PERCENTILES,
)  # fmt: skip
LINK = _object(a=TEXT, b=TEXT, up=BOOLEAN, why=TEXT, kept_bytes=INTEGER)
ALERT = _object(level={"enum": ["warning", "error"]}, kind=TEXT, text=TEXT, since=NUMBER)
SCHEMAS = {
    "Broker": BROKER, "Link": LINK, "Client": CLIENT, "ClientDetail": DETAIL, "Handoff": HANDOFF,
    "Figures": FIGURES, "Alert": ALERT,
    "BrokerDetail": _object(
        **BROKER["properties"], configuration=_or_null(ANY_OBJECT), status=_or_null(ANY_OBJECT)
    ),
    "Network": _object(
        served_by=TEXT, time=NUMBER, brokers=_list(_ref("Broker")), links=_list(_ref("Link")),
        figures=_ref("Figures"), alerts=_list(_ref("Alert")),
    ),
    "Clients": _object(clients=_list(_ref("Client")), total=INTEGER, next=_or_null(TEXT)),
    "Handoffs": _object(handoffs=_list(_ref("Handoff"))),
    "Me": _object(user=_or_null(TEXT), may_operate=BOOLEAN, login_needed=BOOLEAN, pseudonyms=BOOLEAN),
    "Explanation": _object(text=_list(TEXT)),
    "Done": _object(done=BOOLEAN, text=TEXT),
    "Brokers": _object(brokers=_list(_ref("Broker"))),
    "Links": _object(links=_list(_ref("Link"))),
}  # fmt: skip

READS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "/api/v1/network": ("Brokers, links, figures and alerts.", "Network", ()),
    "/api/v1/brokers": ("The brokers alone.", "Brokers", ()),
    "/api/v1/links": ("The links alone.", "Links", ()),
    "/api/v1/brokers/{id}": ("One broker, with its status and its configuration.", "BrokerDetail", ("id",)),
    "/api/v1/clients": (
        "Clients, by id: those after `after`, whose id contains `search`, at `broker`.",
        "Clients", ("search?", "broker?", "limit?", "after?"),
    ),
    "/api/v1/clients/{id}": ("One client's session.", "ClientDetail", ("id",)),
    "/api/v1/explain/{client}": ("A description in sentences.", "Explanation", ("client",)),
    "/api/v1/handoffs": ("Finished handoffs, the newest first.", "Handoffs", ("limit?",)),
    "/api/v1/me": ("The user or program that asks, and its rights.", "Me", ()),
}  # fmt: skip


def _parameter(name: str) -> dict[str, Any]:
    bare = name.removesuffix("?")
    return {
        "name": bare,
        "in": "query" if name != bare else "path",
        "required": name == bare,
        "schema": INTEGER if bare == "limit" else TEXT,
    }


def _answers(schema: str) -> dict[str, Any]:
    found = {"description": "OK", "content": {"application/json": {"schema": _ref(schema)}}}
    lines = {"400": "not valid", "401": "log in first", "403": "not allowed", "404": "not there"}
    return {"200": found} | {code: {"description": f"One line: {text}"} for code, text in lines.items()}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


@cache
def description() -> dict[str, Any]:
    paths: dict[str, Any] = {
        path: {
            "get": {
                "summary": summary,
                "parameters": [_parameter(name) for name in parameters],
                "responses": _answers(schema),
            }
        }
        for path, (summary, schema, parameters) in READS.items()
    }
    paths["/api/v1/events"] = {
        "get": {
            "summary": "Server-Sent Events: network (once a second), clients (changes; the first events hold "
            "everything), handoffs (as they finish).",
            "responses": {"200": {"description": "OK", "content": {"text/event-stream": {"schema": TEXT}}}},
        }
    }
    paths["/api/v1/actions/{action}"] = {
        "post": {
            "summary": "Actions: kick (client), drain (broker, to), forget (broker), promote (broker, to).",
            "parameters": [
                {**_parameter("action"), "schema": {"enum": ["drain", "kick", "forget", "promote"]}}
            ],
            "requestBody": _body(
                {"type": "object", "properties": {"broker": TEXT, "client": TEXT, "to": TEXT}}
            ),
            "responses": _answers("Done"),
        }
    }
    paths["/api/v1/login"] = {
        "post": {
            "summary": "Log in as a user of the broker; sets a cookie.",
            "requestBody": _body(_object(user=TEXT, password=TEXT)),
            "responses": _answers("Me"),
        }
    }
    paths["/api/v1/logout"] = {
        "post": {"summary": "Forget the cookie.", "responses": {"200": {"description": "OK"}}}
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Roamcast",
            "version": __version__,
            "summary": "The network of brokers, as it is now.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "roamcast_session"},
            },
        },
        "security": [{}, {"token": []}, {"cookie": []}],
    }
