"""`roamcast link`: a slow link between two programs."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from typing import Annotated

import typer

from roamcast.cli.usage import show_examples
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
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on for the mobile side.")
    ],
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the server behind the link.")],
    profile: Annotated[
        str, typer.Option(help="What kind of link: gprs, gprs-far, edge, umts, lte, wifi-weak, satellite.")
    ] = "gprs",
    up: Annotated[
        float | None, typer.Option(min=1.0, help="Rate towards the server, bit/s; overrides the kind.")
    ] = None,
    down: Annotated[
        float | None, typer.Option(min=1.0, help="Rate from the server, bit/s; overrides the kind.")
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(min=0.0, max=600_000.0, help="Delay in each direction, ms; overrides the kind."),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Probability that a packet must be sent again; overrides the kind."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of random events. [default: random]")] = None,
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
