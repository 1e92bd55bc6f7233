"""The configuration of a proxy: every key, its type, its bounds and its default, and how it is read.

Users read the docstring under a field in the default file and in the guide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from msgspec import Meta, field

from roamcast.config.addresses import is_loopback
from roamcast.config.loading import Program, Warn, check_secret
from roamcast.config.private_files import check_private, check_readable, read_secret
from roamcast.config.schema import PathText, SecretText, Section
from roamcast.config.sections import Bytes, Count, Endpoint, Host, Log, Name, Port, Seconds
from roamcast.errors import InputError, did_you_mean
from roamcast.proxy.adapter import known_kinds


class Broker(Section, frozen=True):
    """The foreign broker of this site."""

    kind: str = "mosquitto"
    """Kind of the broker: activemq, mosquitto, nats, rabbitmq, roamcast, or one of your own."""
    url: str = "mqtt://127.0.0.1:1883"
    """URL at which the proxy reaches the broker, as in mqtt://127.0.0.1:1883 or nats://127.0.0.1:4222."""
    client_url: str = ""
    """URL at which clients reach the broker, if it is different; every accepted client is told."""
    user: str = ""
    """The user name of the proxy at the foreign broker; not told to clients."""
    password_file: PathText = ""
    """A file with the password of that user."""

    @property
    def own_url(self) -> str:
        """URL with the proxy's own credentials."""
        if not self.user:
            return self.url
        password = read_secret(self.password_file, "broker.password_file") if self.password_file else ""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{quote(self.user, safe='')}:{quote(password, safe='')}@{rest}"


class Listener(Section, frozen=True):
    """Where clients and other proxies connect."""

    address: Host = "127.0.0.1"
    """Address to listen on. An address that is not loopback needs users, and a secret among proxies."""
    port: Port = 7110
    """Port to listen on; 0 takes any free port."""
    certificate: PathText = ""
    """The certificate chain, PEM; with certificate and key all connections are encrypted."""
    key: PathText = ""
    """Its private key, PEM."""
    connections_max: Count = 10_000
    """Concurrent connections, including unauthenticated ones: past the limit the oldest unauthenticated
    one is closed for a new one."""


class Neighbour(Section, frozen=True):
    """The proxy of another site; write one [[proxy]] for each. Each may ask this proxy and is asked by it."""

    site: Name
    """The id of that site."""
    address: Endpoint
    """Address of that site's proxy, HOST:PORT."""


class Peers(Section, frozen=True):
    """How proxies authenticate to each other."""

    secret: SecretText = ""
    """Shared secret of all proxies, at least 16 characters; preferably kept in a file."""
    secret_file: PathText = ""
    """A file with the secret."""
    ca: PathText = ""
    """Certificate authorities of the other proxies, PEM; if set, connections to them are encrypted."""


class Access(Section, frozen=True):
    """Which clients may connect."""

    users: PathText = ""
    """The file of users that `roamcast user add` writes; empty accepts everybody."""


class Buffers(Section, frozen=True):
    """Buffers for clients that are away: sizes and times."""

    clients_max: Count = 10_000
    """Number of client handlers; past it move-outs are refused."""
    filters_max: Count = 1000
    """Subscriptions of one client."""
    bytes_max: Bytes = 67_108_864
    """Size of one client's buffer; a client may ask for less."""
    bytes_total_max: Bytes = 1_073_741_824
    """Size of all buffers together."""
    lease_s: Seconds = 86_400.0
    """How long a buffer is kept for a client that does not request a time."""
    lease_max_s: Seconds = 604_800.0
    """The longest time that a client may request."""
    overflow: Literal["newest", "oldest"] = "newest"
    """Which messages a full buffer drops: new ones, or the oldest. Clients are told the number."""
    sync: Literal["process", "group"] = "process"
    """"process" survives a crash or kill of the proxy; "group" also survives a power failure, with one
    disk sync for all messages that arrive together."""


class Ping(Section, frozen=True):
    """The synchronisation option that sends pings through the foreign broker."""

    interval_s: Seconds = 0.2
    """The pause between two pings."""
    timeout_s: Seconds = 10.0
    """Seconds without a returned ping after which a move-out is refused."""


class Proactive(Section, frozen=True):
    """Copies at the sites where clients go next, which listen before a client arrives (pro-active
    proxies)."""

    enabled: bool = False
    """Whether this proxy tells its neighbours about move-outs, and keeps copies for them. Clients ask for
    a copy with `Options(ahead=True)`."""
    sites: tuple[Name, ...] = ()
    """The neighbours: ids of sites of [[proxy]]. If empty, they are learned from the moves of clients."""
    neighbours_max: Count = 4
    """Maximum number of learned neighbours; past it the least recently used one is removed."""
    neighbour_timeout_s: Seconds = 604_800.0
    """Seconds without a move after which a learned neighbour is removed."""


class Mqtt(Section, frozen=True):
    """The endpoint for standard MQTT clients, in front of a broker of kind mosquitto."""

    enabled: bool = False
    """Whether to start the endpoint."""
    address: Host = "127.0.0.1"
    """Address to listen on; an address that is not loopback needs users."""
    port: Port = 1884
    """Port to listen on; 0 takes any free port."""
    certificate: PathText = ""
    """The certificate chain, PEM; with certificate and key all connections are encrypted."""
    key: PathText = ""
    """Its private key, PEM."""
    session_s: Seconds = 604_800.0
    """Longest time that the session of a disconnected client is kept."""
    locate_timeout_s: Seconds = 5.0
    """Timeout for finding a session at other sites; past it the client is told to try again."""
    receive_max: Annotated[int, Meta(ge=1, le=65_535)] = 1000
    """Maximum number of unacknowledged QoS 1 messages sent to a client."""


class Config(Section, frozen=True):
    """One proxy."""

    site: Name = "a"
    """The id of this site, different from that of every other site."""
    data: PathText = "proxy-data"
    """The folder for all persistent data."""
    broker: Broker = field(default_factory=Broker)
    listener: Listener = field(default_factory=Listener)
    proxies: tuple[Neighbour, ...] = field(name="proxy", default=())
    peers: Peers = field(default_factory=Peers)
    access: Access = field(default_factory=Access)
    buffers: Buffers = field(default_factory=Buffers)
    ping: Ping = field(default_factory=Ping)
    proactive: Proactive = field(default_factory=Proactive)
    mqtt: Mqtt = field(default_factory=Mqtt)
    log: Log = field(default_factory=Log)

    @property
    def journal_folder(self) -> Path:
        return Path(self.data) / "buffers"

    @property
    def sites(self) -> tuple[str, ...]:
        """The ids of the other sites, whose proxies may be asked."""
        return tuple(one.site for one in self.proxies)


def _check(config: Config, warn: Warn) -> None:
    if "@" in config.broker.url:
        raise InputError("clients are told broker.url; set broker.user and broker.password_file instead")
    if config.broker.kind not in known_kinds():
        hint = did_you_mean(config.broker.kind, known_kinds()) or f"known are {', '.join(known_kinds())}"
        raise InputError(f"broker.kind = {config.broker.kind}: {hint}")
    _check_proxies(config)
    for section, name in ((config.listener, "listener"), (config.mqtt, "mqtt")):
        if bool(section.certificate) != bool(section.key):
            raise InputError(f"{name}: certificate and key belong together; give both or none")
        if section.certificate:
            check_readable(section.certificate, f"{name}.certificate")
            check_private(section.key, f"{name}.key")
        is_used = name == "listener" or config.mqtt.enabled
        if is_used and not is_loopback(section.address):
            _check_open(config, name, section.certificate, warn)
    if config.mqtt.enabled and config.broker.kind != "mosquitto":
        raise InputError(f"mqtt.enabled: it needs a broker of kind mosquitto, not {config.broker.kind}")
    if config.access.users:
        check_private(config.access.users, "access.users")


def _check_proxies(config: Config) -> None:
    sites = [config.site, *(one.site for one in config.proxies)]
    for site in sites:
        if sites.count(site) > 1:
            raise InputError(f"proxy: site {site} is listed twice, and this one is {config.site}; keep one")
    if config.proxies and not config.peers.secret:
        raise InputError("peers.secret_file is missing: proxies authenticate to each other with it")
    for site in config.proactive.sites:
        if site not in config.sites:
            known = ", ".join(config.sites) or "none"
            raise InputError(f"proactive.sites: {site} is no site of a [[proxy]]; known are {known}")
    check_secret("peers.secret", config.peers.secret)


def _check_open(config: Config, name: str, certificate: str, warn: Warn) -> None:
    """Check the settings of a listener that other machines can reach."""
    if not config.access.users:
        raise InputError(f"{name}.address is not loopback: set access.users, so that clients are known")
    if not certificate:
        warn(f"{name}: passwords travel without encryption; set {name}.certificate and {name}.key")


PROXY = Program(Config, "ROAMCAST_PROXY", _check, {"proxy": Neighbour(site="b", address="127.0.0.1:7111")})
load = PROXY.load
