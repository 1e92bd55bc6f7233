"""Attacks by connections: many that send nothing, send it slowly, or connect and leave."""

from __future__ import annotations

import ssl
from contextlib import suppress

from roamcast.bench.attack.base import Attack, Crowd, Hostile, Target, failures_counted, trusting_context
from roamcast.bench.processes import HOST
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.writing import write

CROWD = 1_500
TLS_CROWD = 500
HTTP_CROWD = 200
FILES = 1024
"""A common limit of open files per process: lower than the number of attackers."""


def silent_tcp(target: Target) -> None:
    Crowd(target, "tcp", CROWD).keep()


def silent_tls(target: Target) -> None:
    Crowd(target, "tls", CROWD).keep()


def half_tls(target: Target) -> None:
    """Start a TLS handshake, and never continue it."""
    outgoing = ssl.MemoryBIO()
    client = trusting_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    crowd = Crowd(target, "tls", TLS_CROWD)
    crowd.first_bytes = hello
    crowd.keep()


def slow_connect(target: Target) -> None:
    Crowd(target, "tcp", CROWD).keep(write(packets.Connect(5, "slow"), 5))


def slow_websocket(target: Target) -> None:
    request = "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    Crowd(target, "ws", CROWD).keep(request.encode())


def silent_http(target: Target) -> None:
    Crowd(target, "http", HTTP_CROWD).keep()


def connect_flood(target: Target) -> None:
    for number in target.turns():
        with failures_counted(target), Hostile(target.ports["tcp"]) as client:
            target.count_answer(client.connect(f"flood-{number % 1000}"))
            client.send_all(packets.Disconnect())


ATTACKS = (
    Attack("silent-tcp", f"{CROWD} connections over TCP that send nothing", silent_tcp, files_max=FILES),
    Attack(
        "silent-tls",
        f"{CROWD} connections to a TLS listener that send nothing",
        silent_tls,
        door="tls",
        files_max=FILES,
    ),
    Attack("half-tls", f"{TLS_CROWD} TLS connections that stop after ClientHello", half_tls, door="tls"),
    Attack(
        "slow-connect", f"{CROWD} connections that send a CONNECT byte by byte", slow_connect, files_max=FILES
    ),
    Attack(
        "slow-websocket",
        f"{CROWD} WebSocket handshakes byte by byte",
        slow_websocket,
        door="ws",
        files_max=FILES,
    ),
    Attack("silent-http", f"{HTTP_CROWD} connections to /healthz that send nothing", silent_http),
    Attack("connect-flood", "CONNECT and DISCONNECT, one after the other, without a pause", connect_flood),
)
