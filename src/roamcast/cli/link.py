"""`roamcast link`: a slow link between two programs."""

from __future__ import annotations

import asyncio
import random
import signal
import sys

import typer

from roamcast.cli.usage import option, show_examples
from roamcast.errors import InputError


def register(app: typer.Typer) -> None:
    app.command(
        "link",
        epilog=show_examples(
            "roamcast link --listen 127.0.0.1:1884 --to 127.0.0.1:1883 --profile gprs",
            "roamcast link --listen 127.0.0.1:1884 --to 127.0.0.1:1883 --profile lte --delay 80 --error 0.01",
        ),
    )(link)


def link(
    listen: str = option(..., "Address to listen on for the mobile side.", metavar="HOST:PORT"),
    to: str = option(..., "Address of the server behind the link.", metavar="HOST:PORT"),
    profile: str = option(
        "gprs", "What kind of link: gprs, gprs-far, edge, umts, lte, wifi-weak, satellite."
    ),
    up: float | None = option(None, "Rate towards the server, bit/s; overrides the kind.", min=1.0),
    down: float | None = option(None, "Rate from the server, bit/s; overrides the kind.", min=1.0),
    delay: float | None = option(
        None, "Delay in each direction, ms; overrides the kind.", min=0.0, max=600_000.0
    ),
    error: float | None = option(
        None, "Probability that a packet must be sent again; overrides the kind.", min=0.0, max=1.0
    ),
    seed: int | None = option(None, "Seed of random events. [default: random]"),
) -> None:
    """Forward TCP connections like a slow link: with its rate, delay and errors.

    Nothing is lost: a corrupted packet arrives later, and delays all later ones. All connections share the
    link. The command runs until it is interrupted.
    """
    from roamcast.config.addresses import join_endpoint, split_endpoint
    from roamcast.slow_link.channel import find_profile
    from roamcast.slow_link.relay import SlowLink

    host, port = split_endpoint(listen)
    target_host, target = split_endpoint(to)
    delay_s = None if delay is None else delay / 1000
    wanted = find_profile(profile).changed(up_bps=up, down_bps=down, delay_s=delay_s, error=error)
    relay = SlowLink(target, wanted, random.Random(seed).random, target_host)

    async def serve() -> None:
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        try:
            await relay.start(host, port)
        except OSError as problem:
            raise InputError(f"--listen {listen}: {problem.strerror or problem}") from None
        where = join_endpoint(host, relay.port)
        print(f"link {profile} listens on {where}, to {to}: {wanted.about}", file=sys.stderr)
        await ended.wait()
        await relay.close()

    asyncio.run(serve())
