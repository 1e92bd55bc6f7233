"""What `roamcast pub` and `roamcast sub` have in common: the flags that users of Mosquitto know."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from roamcast.cli.usage import show_examples
from roamcast.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from roamcast.client import Client

EXIT_FAILED = 1
"""A broker or the network said no."""
EXIT_TERMINATED = 143

VERSIONS = {"5": 5, "mqttv5": 5, "4": 4, "311": 4, "3.1.1": 4, "mqttv311": 4}

Host = Annotated[str, typer.Option("-h", "--host", help="The broker's host.")]
Port = Annotated[int | None, typer.Option("-p", "--port", help="Its port: 1883, or 8883 with TLS.")]
Qos = Annotated[
    int, typer.Option("-q", "--qos", min=0, max=2, help="0: at most once; 1: at least; 2: exactly.")
]
Id = Annotated[str | None, typer.Option("-i", "--id", help="The client id; without, a random one.")]
Lasting = Annotated[
    bool,
    typer.Option(
        "-c", "--disable-clean-session", help="Keep the session when this ends, and go on with it next time."
    ),
]
Expiry = Annotated[
    int, typer.Option("-x", "--session-expiry-interval", min=0, help="With -c: for how many seconds.")
]
KeepAlive = Annotated[int, typer.Option("-k", "--keepalive", min=0, max=65_535, help="In seconds.")]
ProtocolVersion = Annotated[
    str, typer.Option("-V", "--protocol-version", help="MQTT version: 5 (mqttv5) or 311 (mqttv311).")
]
User = Annotated[str | None, typer.Option("-u", "--username", help="User name.")]
Password = Annotated[
    str | None, typer.Option("-P", "--pw", envvar="ROAMCAST_PASSWORD", help="Password, better by variable.")
]
CaFile = Annotated[
    str | None, typer.Option("--cafile", help="Use TLS; trust the authorities in this PEM file.")
]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS; trust the authorities of the system.")]
Cert = Annotated[str | None, typer.Option("--cert", help="This client's certificate, PEM.")]
Key = Annotated[str | None, typer.Option("--key", help="Its private key, PEM.")]
Roam = Annotated[
    str | None,
    typer.Option(
        metavar="[ID=]ADDRESS,…",
        help="Attach to the first of these brokers and move on to the next, round and round.",
    ),
]
Every = Annotated[float, typer.Option(min=0.01, help="With --roam: seconds between two moves.")]
Proclaim = Annotated[
    bool, typer.Option("--proclaim", help="With --roam: tell each broker where the client goes next.")
]
Records = Annotated[
    Path | None, typer.Option(help="A new folder for this client's own event log, as Parquet files.")
]


class MosquittoCommand(TyperCommand):
    """A command that also understands Mosquitto's `-D publish user-property NAME VALUE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, rewritten(args))


PROPERTIES = {
    "content-type": "--content-type",
    "message-expiry-interval": "--message-expiry",
    "response-topic": "--response-topic",
    "session-expiry-interval": "--session-expiry-interval",
    "subscription-identifier": "--subscription-identifier",
}


def rewritten(args: list[str]) -> list[str]:
    """Properties in Mosquitto's words become options of ours: its -D has two, three or four words."""
    result: list[str] = []
    at = 0
    while at < len(args):
        if args[at] == "--":
            return result + args[at:]
        if args[at] not in ("-D", "--mqtt-property"):
            result.append(args[at])
            at += 1
            continue
        words = args[at + 1 : at + 5]
        name = words[1] if len(words) > 1 else ""
        if name == "user-property" and len(words) == 4:
            result += ["--property", f"{words[2]}={words[3]}"]
            at += 5
        elif name in PROPERTIES and len(words) > 2:
            result += [PROPERTIES[name], words[2]]
            at += 4
        else:
            known = ["user-property", *PROPERTIES]
            hint = did_you_mean(name, known) if name not in known else None
            raise InputError(
                f"-D {' '.join(words)}: valid is -D COMMAND PROPERTY VALUE, or -D COMMAND user-property NAME "
                f"VALUE; {hint or 'properties are: ' + ', '.join(known)}"
            )
    return result


def register_command(app: typer.Typer, name: str, function: Any, *examples: str) -> None:
    app.command(
        name,
        cls=MosquittoCommand,
        epilog=show_examples(*examples),
        context_settings={"help_option_names": ["--help"]},
    )(function)


@dataclass(frozen=True)
class Connection:
    """Where to connect, and as whom."""

    host: str
    port: int | None
    id: str | None
    lasting: bool
    expiry_s: int
    keep_alive_s: int
    version: str
    user: str | None
    password: str | None
    cafile: str | None
    tls: bool
    cert: str | None
    key: str | None
    roam: str | None
    every_s: float
    proclaim: bool
    records: Path | None = None

    def client(self) -> Client:
        from roamcast.client import connect

        if self.lasting and not self.id:
            raise InputError("-c keeps a session, which needs a name to be found by: give one with -i")
        if self.version not in VERSIONS:
            raise InputError(f"-V {self.version}: valid are 5 (or mqttv5) and 311 (or mqttv311)")
        if self.proclaim and not all("=" in address for address in self.addresses()):
            raise InputError(
                "--proclaim needs the ids of the brokers: --roam a=127.0.0.1:1883,b=127.0.0.1:1884"
            )
        return connect(
            self.addresses(),
            client_id=self.id,
            clean=not self.lasting,
            session_expiry=self.expiry_s,
            keep_alive=self.keep_alive_s,
            version=5 if VERSIONS[self.version] == 5 else 4,
            username=self.user,
            password=self.password,
            tls=self.uses_tls,
            cafile=self.cafile,
            certfile=self.cert,
            keyfile=self.key,
            records=self.records,
        )

    @property
    def uses_tls(self) -> bool:
        return self.tls or self.cafile is not None or self.cert is not None

    def addresses(self) -> list[str]:
        if self.roam is not None:
            return [address for address in self.roam.split(",") if address]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return [f"{host}:{self.port}" if self.port is not None else host]


@asynccontextmanager
async def roaming(client: Client, connection: Connection) -> AsyncIterator[None]:
    """While the block runs, the client roams, if that was asked."""
    task = asyncio.get_running_loop().create_task(_roam(client, connection))
    try:
        yield
    finally:
        task.cancel()
        # If the client is of no use any more, the block has heard of it too.
        await asyncio.gather(task, return_exceptions=True)


async def _roam(client: Client, connection: Connection) -> None:
    """Move from broker to broker, for ever; a broker that does not answer is passed over."""
    from roamcast.client import ConnectError

    stops = connection.addresses() if connection.roam is not None else []
    place = 0
    while len(stops) > 1:
        await asyncio.sleep(connection.every_s)
        place = (place + 1) % len(stops)
        broker, equals, _ = stops[place].partition("=")
        with suppress(ConnectError):
            await client.move_to(broker if equals else stops[place], proclaimed=connection.proclaim)


def run_client(work: Coroutine[Any, Any, int]) -> None:
    """Run until it ends or is told to stop; whatever a broker or the network refuses becomes one line."""
    import uvloop

    from roamcast.client import ClientError

    try:
        code = uvloop.run(_until_told_to_stop(work))
    except ClientError as error:
        print(f"roamcast: {error}", file=sys.stderr)
        code = EXIT_FAILED
    if code:
        raise typer.Exit(code)


async def _until_told_to_stop(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.get_running_loop().create_task(work)
    told = False

    def stop() -> None:
        nonlocal told
        told = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if told:
            return EXIT_TERMINATED
        raise
