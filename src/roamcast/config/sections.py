"""The tables of a broker's configuration: every key, its type, its bounds and its default.

Users read the docstring under a field in the default file and in the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from roamcast.config.addresses import is_loopback
from roamcast.config.schema import PathText, SecretText, Section
from roamcast.mobility.base import Settings
from roamcast.mobility.moving.election import ElectionSettings
from roamcast.mqtt.server.access import AccessRules, Default, Rule
from roamcast.protocol.owners import site_name
from roamcast.protocol.records import Level

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Name = Annotated[
    str, Meta(pattern=NAME_PATTERN, description="a name of up to 64 letters, digits, '.', '_' and '-'")
]
Host = Annotated[str, Meta(pattern=r"^[^\s/]+$", description="an IP address or a host name")]
Endpoint = Annotated[str, Meta(pattern=r"^(\[[^\]\s]+\]|[^:\s/]+):\d{1,5}$", description="HOST:PORT")]
PeerEndpoint = Annotated[str, Meta(pattern=r"^((\[[^\]\s]+\]|[^:\s/]+):\d{1,5})?$", description="HOST:PORT")]
Fingerprint = Annotated[
    str, Meta(pattern="^([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}$", description="64 hexadecimal digits")
]
ClientPattern = Annotated[
    str, Meta(pattern=r"^[^*]+\*?$|^\*$", description='a client id, or its beginning and "*"')
]
UserPattern = Annotated[
    str, Meta(pattern=r"^[^*]+\*?$|^\*$", description='a user name, or its beginning and "*"')
]
TopicRule = Annotated[
    str, Meta(pattern="^!?[^!]", description='a topic filter, or "!" and one that is excluded')
]
TopicPrefix = Annotated[
    str, Meta(pattern="^([^+#$/]([^+#]*[^+#/])?)?$", description="topic levels without wildcards")
]
PeerRight = Literal["data", "subscriptions", "sessions", "groups", "forget", "operate"]
Interface = Annotated[
    str, Meta(pattern=r"^[^\s/]+$", description="the name or the IPv4 address of a network interface")
]
Group = Annotated[
    str,
    Meta(pattern=r"^2(2[4-9]|3\d)(\.\d+){3}$", description="an address from 224.0.0.0 to 239.255.255.255"),
]
DetourPeer = Annotated[
    str, Meta(pattern=NAME_PATTERN + r"|^\*$", description='the id of a broker, or "*" for all')
]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1024)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Stay = Annotated[float, Meta(ge=0, le=31_536_000)]
Distance = Annotated[float, Meta(gt=0, le=20_000_000)]
Change = Annotated[float, Meta(ge=0, le=1e12)]
Bound = Annotated[float, Meta(ge=-1e12, le=1e12)]
VariableName = Annotated[
    str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,63}$", description="a name of small letters, digits and '_'")
]
ListenerKind = Literal["tcp", "tls", "ws", "wss"]


class Listener(Section, frozen=True):
    """Where MQTT clients connect; write one [[listener]] for each."""

    address: Host = "127.0.0.1"
    """Address to listen on; "0.0.0.0" or "::" stands for all interfaces."""
    port: Port = 1883
    """Port to listen on. 1883 is usual for tcp, 8883 for tls; 0 takes any free port."""
    kind: ListenerKind = "tcp"
    """MQTT over TCP, over TLS, or over WebSocket without (ws) and with (wss) TLS."""
    anonymous: bool | None = None
    """Whether clients may connect without a password or certificate; "none" uses access.anonymous, which
    applies to loopback addresses only. On any other address only true opens a listener to everyone."""
    certificate: PathText = ""
    """For tls and wss: the certificate chain, PEM."""
    key: PathText = ""
    """For tls and wss: the private key, PEM; the file must not be readable by other users of the machine."""
    client_ca: PathText = ""
    """For tls and wss: PEM file of certificate authorities; client certificates that they signed are
    accepted. Empty requests none."""
    crl: PathText = ""
    """For tls and wss: revocation lists of the signers in client_ca, PEM. Certificates in them are refused,
    and so are all certificates of a signer whose list is missing or out of date."""
    require_certificate: bool = False
    """Whether a client must show a certificate."""
    certificate_name: Literal["common_name", "dns", "email", "uri"] = "common_name"
    """Which part of a client's certificate is the client's name in access rules."""
    proxy_protocol: bool = False
    """Whether every connection begins with a header of the PROXY protocol, version 2, that names the client's
    address; for a listener behind a load balancer."""
    trusted_proxies: tuple[str, ...] = ()
    """With proxy_protocol: addresses or networks, such as "10.0.0.0/8", that may connect; nobody else can."""
    path: Annotated[str, Meta(pattern="^/", description="a path that begins with /")] = "/mqtt"
    """For ws and wss: the URL path that clients request."""
    origins: tuple[str, ...] = ()
    """For ws and wss: origins of web pages that may connect, such as "https://example.org"; empty allows
    only pages of this host, so that a page of another site cannot use a broker on loopback."""
    hosts: tuple[str, ...] = ()
    """For ws and wss: names that clients call this machine by, such as "broker.example.org", besides
    localhost, the address and the host name of this machine; "*" allows any. With wss, where the certificate
    proves the name, empty allows any."""

    @property
    def is_secure(self) -> bool:
        return self.kind in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.kind in ("ws", "wss")


class Peer(Section, frozen=True):
    """A neighbouring broker; write one [[peer]] for each. The overlay must not contain a cycle, unless the
    mobility protocol is for brokers that move: then list every broker that may come into reach."""

    id: Name
    """The id of that broker. Only brokers that are listed may be linked, see link.unlisted."""
    address: PeerEndpoint = ""
    """Address of its link listener, HOST:PORT; empty waits for the peer to connect here."""
    addresses: tuple[Endpoint, ...] = ()
    """Addresses of the link listeners of its other replicas, if the peer is a replicated site."""
    secret_files: tuple[PathText, ...] = ()
    """Files with secrets for this link only, the newest first; each secret is valid. To replace a secret,
    add the new one at both ends, then remove the old one. Empty uses link.secret."""
    certificate_sha256: tuple[Fingerprint, ...] = ()
    """With link.tls: only these certificates of the peer are accepted, by the SHA-256 of their DER form
    (openssl x509 -outform DER | sha256sum); empty accepts any that link.ca signed for the peer's id."""
    clients: tuple[ClientPattern, ...] = ("*",)
    """Client ids that the peer may act for: sessions that may move over the link, publishers and
    subscribers behind the peer. "guest-*" means all ids that begin with "guest-". With anything but "*"
    the brokers behind the peer are guests: share groups end at the link, and brokers here do not wait for
    the peer's answers."""
    imports: tuple[TopicRule, ...] = field(name="import", default=("#",))
    """Topic filters of messages that may come from the peer. "!FILTER" excludes topics that an earlier
    entry allows; "#" does not match topics that begin with "$"."""
    exports: tuple[TopicRule, ...] = field(name="export", default=("#",))
    """Topic filters of messages that may go to the peer, in the syntax of `import`."""
    prefix: TopicPrefix = ""
    """For another organisation: its topics appear below PREFIX/ here. Messages published here below
    PREFIX/ go to the peer without the prefix; other messages do not. Needs clients = []."""
    may: tuple[PeerRight, ...] = ("data", "subscriptions", "sessions", "groups")
    """Kinds of messages that the peer may send. Without "sessions" or "groups" the peer is also a guest.
    "forget" lets operators of the peer remove brokers permanently, here too; without it each broker must
    be told. "operate" lets operators at brokers behind the peer drain this broker."""
    messages_per_s: Annotated[float, Meta(gt=0)] | None = None
    """Messages per second accepted from the peer; reading from a faster peer is slowed down."""
    bytes_per_s: Annotated[float, Meta(ge=1024)] | None = None
    """Bytes per second accepted from the peer; reading from a faster peer is slowed down."""
    subscriptions_max: Count = 1_000_000
    """Subscriptions of the peer here, including those of all brokers behind it."""
    retained_max: Count = 1_000_000
    """Retained messages from the peer that are kept here; further ones are not kept."""
    sessions_max: Count = 1_000_000
    """Sessions from the peer that are held here; further ones stay where they are."""

    @property
    def is_guest(self) -> bool:
        """Whether the peer may speak for some clients only, see `broker.links.rules.PeerRules`."""
        return self.clients != ("*",) or not {"sessions", "groups"} <= {*self.may}


class Link(Section, frozen=True):
    """Links to peers: the listener, and how both ends authenticate."""

    address: Host = "127.0.0.1"
    """Address to listen on for peers. An address that is not loopback needs a secret, or TLS with a CA."""
    port: Port | None = None
    """The port for peers; "none" only connects to peers and accepts no link; 0 takes any free port."""
    secret: SecretText = ""
    """The secret that all brokers of the network share, at least 16 characters; preferably kept in a file."""
    secret_file: PathText = ""
    """A file with the secret, without spaces and newlines around it."""
    secret_variable: str = ""
    """The name of an environment variable that holds the secret."""
    tls: bool = False
    """Whether links are encrypted; then certificate, key and ca are needed."""
    certificate: PathText = ""
    """This broker's certificate chain, PEM; used as client and as server."""
    key: PathText = ""
    """Its private key, PEM."""
    ca: PathText = ""
    """Certificate authorities of the peers, PEM. A peer's certificate must contain its broker id as a DNS
    name or as its common name."""
    crl: PathText = ""
    """Revocation lists of all authorities in link.ca, PEM: peers with revoked certificates are refused.
    Empty for none."""
    unlisted: Literal["auto", "accept", "refuse"] = "auto"
    """Brokers without a [[peer]] entry: "accept" links any broker that knows link.secret or has a
    certificate of link.ca; "auto" does so only without authentication (on loopback, without secret and
    TLS) and with discovery."""
    reconnect_min_s: Seconds = 0.2
    """The first pause before reconnecting; it doubles up to reconnect_max_s."""
    reconnect_max_s: Seconds = 15.0
    """The longest pause before reconnecting."""
    heartbeat_s: Seconds = 2.0
    """Seconds of silence after which a heartbeat is requested from the peer."""
    timeout_s: Seconds = 10.0
    """Seconds of silence after which a link is closed and opened again."""
    unacknowledged_bytes_max: Bytes = 268_435_456
    """Bytes buffered for an unreachable peer; past it clients that publish with QoS 1 or 2 wait, here and
    at the brokers behind this one."""

    @property
    def accepts_unlisted(self) -> bool:
        return self.unlisted == "accept" or (self.unlisted == "auto" and not (self.secret or self.tls))


class Detour(Section, frozen=True):
    """A broker that may carry links of this one; write one [[detour]] for each. While the direct
    connection to a peer is cut, this broker and the peer, which needs such an entry too, connect through
    that broker. Both ends still authenticate each other, and their traffic is protected as on the direct
    connection."""

    id: Name
    """The id of that broker. The two need not be peers; that broker lists this one in relay.brokers."""
    address: Endpoint
    """Address of its link listener, HOST:PORT."""
    addresses: tuple[Endpoint, ...] = ()
    """Addresses of the link listeners of its other replicas, if it is a replicated site."""
    peers: tuple[DetourPeer, ...] = ("*",)
    """Peers whose links may take this detour; "*" means all."""
    secret_files: tuple[PathText, ...] = ()
    """Files with the secrets between this broker and that one, the newest first; empty uses those of the
    [[peer]] with this id, or link.secret."""
    certificate_sha256: tuple[Fingerprint, ...] = ()
    """With link.tls: only these certificates of that broker are accepted, by the SHA-256 of their DER form;
    empty accepts any that link.ca signed for its id."""


class Relay(Section, frozen=True):
    """Links of other brokers that this one carries while their direct connection is cut. A relay can delay
    or end these links. It cannot read TLS traffic, and cannot change or add anything unless it knows the
    secret of the link: give links that take detours their own secrets, or use TLS."""

    brokers: tuple[Name, ...] = ()
    """Brokers that may be connected through this one, each with each other; empty carries nothing. Each
    authenticates as a peer does."""
    secret_files: tuple[PathText, ...] = ()
    """Files with the secrets of these brokers, the newest first; empty uses those of the [[peer]] with the
    same id, or link.secret."""
    bytes_per_s: Annotated[float, Meta(ge=1024)] | None = None
    """Bytes per second accepted from each of these brokers; reading from a faster one is slowed down."""
    connections_max: Count = 64
    """Concurrent connections of these brokers; a carried link has two."""


class Discovery(Section, frozen=True):
    """Discovery of brokers on the local network, with protocols whose brokers may move. Each broker
    announces its address by multicast, signed with link.secret; receivers connect to it."""

    enabled: bool = False
    """Whether to announce this broker, and to connect to discovered brokers."""
    interface: Interface = "127.0.0.1"
    """Network interface for announcements: a name such as "wlan0", or its address. With a name, a changed
    address is noticed and announced. Any interface but loopback needs link.secret."""
    group: Group = "239.255.73.70"
    """The multicast group; datagrams do not leave the local network."""
    port: Annotated[int, Meta(ge=1, le=65_535)] = 7370
    """UDP port of the announcements, the same at every broker."""
    interval_s: Seconds = 1.0
    """Interval between announcements of this broker."""
    forget_s: Seconds = 60.0
    """Seconds after which a broker that is neither heard nor connected is forgotten."""
    brokers_max: Count = 256
    """Number of discovered brokers remembered."""
    clock_error_max_s: Seconds | None = 300.0
    """Largest clock difference between two machines; older announcements are refused, since they may be
    replayed. "none" disables the check, for machines without a correct clock."""


class ProtocolSettings(Settings, frozen=True):
    """Settings of mobility protocols; each protocol reads those that concern it."""

    fetch_max: Annotated[int, Meta(ge=64, le=65_536)] = 1024
    """Notifications fetched at once for a client that reads without pause."""


class Mobility(Section, frozen=True):
    """How sessions follow their clients. These settings must be the same at all brokers of a network."""

    protocol: str = "multi_hop_handoff"
    """The mobility protocol; docs/protocols.md compares them."""
    routing: str = ""
    """The routing strategy; empty uses the protocol's default."""
    unreachable: Literal["refuse", "serve"] = "refuse"
    """What to do for a client whose session may be at a broker that cannot be reached: refuse the client
    (nothing is lost), or serve it at once and deliver missing messages later (QoS 1 may be duplicated, QoS
    2 is refused)."""
    locate_timeout_s: Seconds = 5.0
    """How long to look for a session before a broker counts as unreachable."""
    meet_timeout_s: Seconds = 5.0
    """After a start: how long clients wait for the first link, over which a peer confirms that this broker
    has its newest history; also how long searches for sessions wait for a peer that is new in the
    configuration. A broker that started with an empty folder and has met no peer waits until it meets one,
    or an operator decides."""
    unmet: Literal["wait", "serve"] = "wait"
    """What to do for clients without a session here, while a broker that started with an empty folder has
    not met all its peers, since one of them may hold the session: refuse the clients with 0x88 until all
    peers were met once or removed from the configuration, or an operator accepts the history; or serve
    them with a new session after meet_timeout_s."""
    seen_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 1024
    """For brokers that move: deliveries remembered for each client, to prevent duplicates."""
    model: PathText = ""
    """Where clients go next, for proactive and roam: a file of 'roamcast pipeline neighbours'. If the file is
    missing, too old or of other brokers, a warning says so, and the broker learns from moves alone."""
    model_age_s_max: Seconds | None = 2_592_000.0
    """Greatest age of the model; "none" accepts any age."""
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)


class Journal(Section, frozen=True):
    """The journal on disk: inputs are written to it before they are acknowledged."""

    folder: PathText = ""
    """Folder of the journal; empty is the folder "journal" in the data folder."""
    sync: Literal["process", "group"] = "group"
    """"process" survives a crash or kill of the broker; "group" also survives a power failure, with one
    disk sync for all inputs that arrived meanwhile."""
    segment_bytes: Annotated[int, Meta(ge=65_536, le=1_073_741_824)] = 16_777_216
    """Size of one journal file; files are recycled."""
    snapshot_after_bytes: Annotated[int, Meta(ge=65_536)] = 67_108_864
    """Bytes of journal after which a snapshot is written and older files are recycled."""
    bytes_max: Annotated[int, Meta(ge=1_048_576)] = 1_073_741_824
    """Largest size of the journal without a snapshot; past it the broker acknowledges nothing until a
    snapshot is written. Snapshots and spare files take additional space."""
    snapshot_retry_s: Seconds = 30.0
    """Seconds between a failed snapshot and the next attempt."""


class Mqtt(Section, frozen=True):
    """Limits of MQTT; CONNACK reports them to clients of version 5."""

    packet_bytes_max: Annotated[int, Meta(ge=1024, le=268_435_455)] = 1_048_576
    """The largest packet that a client may send."""
    small_packet_bytes_max: Annotated[int, Meta(ge=1024, le=268_435_455)] = 16_384
    """The largest packet of other types than PUBLISH, SUBSCRIBE and UNSUBSCRIBE. A
    CONNECT may have up to 256 KiB."""
    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 1024
    """Unacknowledged QoS 1 and 2 messages that a client may have sent (the receive maximum)."""
    inflight_max: Annotated[int, Meta(ge=1, le=65_535)] = 1024
    """Unacknowledged QoS 1 and 2 messages sent to a client, at most; the client's own receive maximum
    may be lower."""
    topic_alias_maximum: Annotated[int, Meta(ge=0, le=65_535)] = 64
    """How many topic aliases a client may use towards the broker; 0 allows none."""
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    """The highest quality of service."""
    retained: bool = True
    """Whether retained messages are allowed."""
    shared_subscriptions: bool = True
    """Whether $share/… subscriptions are allowed."""
    session_expiry_max_s: Annotated[int, Meta(ge=0, le=4_294_967_295)] = 604_800
    """Longest time that the session of a disconnected client is kept."""
    session_expiry_v3_s: Annotated[int, Meta(ge=0, le=4_294_967_295)] = 604_800
    """Time that the session of a disconnected MQTT 3.1.1 client is kept."""
    keep_alive_max_s: Annotated[int, Meta(ge=1, le=65_535)] = 3600
    """The longest keep-alive; clients that request a longer one, or none, are told to use this one."""
    connect_timeout_s: Seconds = 10.0
    """Time limit of a new connection, for TLS, WebSocket and CONNECT together."""
    settle_timeout_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """Seconds that SUBACK waits, at most, until every broker knows the subscription."""
    client_id_bytes_max: Annotated[int, Meta(ge=23, le=65_535)] = 256
    """The longest client id."""
    topic_bytes_max: Annotated[int, Meta(ge=1, le=65_535)] = 4096
    """The longest topic and topic filter."""
    topic_levels_max: Annotated[int, Meta(ge=1, le=32_768)] = 128
    """How many levels a topic or topic filter may have."""
    user_properties_max: Annotated[int, Meta(ge=0, le=65_535)] = 64
    """How many user properties one packet may carry."""
    sys_interval_s: Annotated[float, Meta(ge=0, le=86_400)] = 10.0
    """How often $SYS/broker/… is published; 0 turns it off."""


class Quotas(Section, frozen=True):
    """Resource limits, per client and in total."""

    connections_max: Count = 20_000
    """Concurrent connections of all clients and strangers; fewer if the system's limit of open files does
    not allow as many beside the broker's own files."""
    connections_per_address_max: Count | None = 1000
    """Concurrent connections from one address; loopback addresses are not counted."""
    connecting_max: Count = 1000
    """Connections that have not sent CONNECT yet; past it one connection of the address with the most of
    them is closed: the oldest of the silent ones, or of the others if these are more."""
    connecting_per_address_max: Count | None = 250
    """Connections from one address that have not sent CONNECT yet; past it the oldest one is closed.
    Loopback addresses are not counted."""
    sessions_max: Count = 100_000
    """Sessions held by this broker, including those of disconnected clients. Past it a new session evicts
    one without subscriptions whose client is disconnected; if there is none, the client is refused."""
    sessions_per_user_max: Count = 10_000
    """Sessions of one user, or of one name in certificates, at most half of sessions_max; anonymous
    clients do not count as one user. Past the limit a session that arrives here without its client ends."""
    handoffs_per_client_per_minute_max: Count | None = 60
    """Handoffs per minute of one client's session to this broker; past it CONNACK says "connection rate
    exceeded" and the session stays where it is. Returning to the previous broker is not counted."""
    wills_bytes_max: Bytes = 67_108_864
    """Memory of all wills; past it clients with a will are refused."""
    subscriptions_per_client_max: Count = 1000
    """Subscriptions of one client."""
    subscription_bytes_per_client_max: Bytes = 33_554_432
    """Memory of the subscriptions of one client: for each 2 KiB, 160 bytes per level and 3 per character of
    the topic filter, and 150 bytes per character of its conditions."""
    subscription_bytes_max: Bytes = 2_147_483_648
    """Memory of the subscriptions of all clients together, at most half of it for one user. Past it SUBACK
    says "quota exceeded"."""
    queue_notifications_max: Count = 100_000
    """Notifications queued for one client."""
    queue_bytes_max: Bytes = 67_108_864
    """Memory of the queue of one client: topic, payload, properties, and 320 bytes per notification."""
    drop: Literal["oldest", "newest"] = "oldest"
    """Which notifications a full queue drops; each drop is counted and recorded."""
    publish_per_s: Annotated[float, Meta(gt=0)] | None = None
    """Notifications per second that one client may publish; reading from a faster client is slowed down."""
    publish_burst: Count = 1000
    """Number of notifications that a client may publish at once after a pause, if publish_per_s is set."""
    publish_bytes_per_s: Annotated[float, Meta(ge=1024)] | None = None
    """Bytes per second that one client may send."""
    output_bytes_max: Bytes = 4_194_304
    """Unsent bytes for a client that reads slowly. Past this, QoS 0 messages are dropped; past twice this,
    the broker stops reading from the client. The limit also applies to QoS 1 and 2 messages in flight:
    further ones wait in the queue."""
    retained_messages_max: Count = 100_000
    """Number of retained messages."""
    retained_bytes_max: Bytes = 268_435_456
    """Memory of retained messages: twice the topic, payload, properties, and about 800 bytes per message."""
    buffered_bytes_max: Bytes = 2_147_483_648
    """Bytes in all queues and buffers together; a message for several clients counts once. Past it
    messages are dropped, from the longest queues first; if that is not enough, clients that acknowledge
    nothing are disconnected. Past half of it, output_bytes_max shrinks, most for slow readers."""


class Jwt(Section, frozen=True):
    """Tokens (JWT) that clients give as their password; needs the extra `roamcast[auth]`."""

    keys: PathText = ""
    """A file with the public keys of token signers: PEM, or JWKS (JSON). Empty accepts no tokens."""
    algorithms: tuple[
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"], ...
    ] = ("RS256", "ES256", "EdDSA")
    """Accepted signature algorithms; shared-secret algorithms are never accepted."""
    issuer: str = ""
    """Required value of the claim `iss`; empty accepts any."""
    audience: str = ""
    """Required value of the claim `aud`; empty accepts any."""
    user_claim: str = "sub"
    """The claim that names the user."""
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 0.0
    """Tolerated clock difference to the signer."""


class HttpHook(Section, frozen=True):
    """An HTTP service that authenticates users who are not in the broker's own file."""

    url: str = ""
    """URL to POST to; empty disables the hook. http:// is accepted for loopback addresses only."""
    ca: PathText = ""
    """Certificate authorities of the service, PEM; empty uses those of this machine."""
    timeout_s: Seconds = 3.0
    """Timeout of a request; past it the client is refused."""
    cache_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    """How long an accepting answer is cached (as a keyed hash); 0 asks every time."""
    requests_max: Count = 64
    """Concurrent requests; further clients are refused as "server busy"."""


class Access(Section, frozen=True):
    """Which clients may connect, and what they may do. Reloaded on SIGHUP."""

    users: PathText = ""
    """The file of users that `roamcast user add` writes; empty accepts no passwords."""
    realm: Annotated[
        str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$", description="a name, or nothing")
    ] = ""
    """Name that several brokers share to have common users: a user of the realm has the same session at
    all of them. Empty: users are known only at this broker, and a user of the same name elsewhere is a
    different user."""
    realm_brokers: tuple[str, ...] = ()
    """The other brokers of the realm; they are trusted to authenticate its users. * means any characters."""
    anonymous: Literal["auto", "loopback", "never"] = "auto"
    """Clients without password or certificate: "loopback" accepts them on loopback listeners, "never"
    refuses them, "auto" accepts them on loopback listeners as long as no logins are configured. A listener
    can override this."""
    default: Literal["auto", "allow", "deny"] = "auto"
    """Verdict if no rule matches; "auto" allows if there are no rules, and denies otherwise."""
    rules: tuple[Rule, ...] = field(name="rule", default=())
    """Access rules in order; the first matching rule decides."""
    verifications_max: Annotated[int, Meta(ge=1, le=64)] = 2
    """Passwords checked concurrently, each on its own thread; one check takes 19 MiB and about 40 ms of a
    core."""
    verifications_waiting_max: Count = 1000
    """Passwords waiting for their check; more are refused as "server busy"."""
    verified_max: Annotated[int, Meta(ge=0)] = 10_000
    """Number of checked credentials remembered (as keyed hashes), so that reconnecting needs no new check;
    0 for none."""
    verified_s: Seconds = 3600.0
    """Seconds that checked credentials are remembered."""
    failures_max: Count = 5
    """Failed logins from one address with one user name before the next login has to wait. After 20 times
    as many failures from one address, users who have not logged in from there before share this many tries
    per backoff_s."""
    backoff_s: Seconds = 1.0
    """First waiting time; it doubles with each further failure."""
    backoff_max_s: Seconds = 60.0
    """Longest waiting time; failures are remembered for as long."""
    jwt: Jwt = Jwt()
    http: HttpHook = HttpHook()

    @property
    def has_logins(self) -> bool:
        """Return whether clients can authenticate with a user name and a password."""
        return bool(self.users or self.jwt.keys or self.http.url)


class Metrics(Section, frozen=True):
    """The HTTP listener: /metrics for Prometheus, /healthz, and what [view] says."""

    enabled: bool = False
    """Whether to start the HTTP listener."""
    address: Host = "127.0.0.1"
    """Address to listen on. /metrics and /healthz have no password: keep them on loopback, or behind a
    proxy that asks for one."""
    port: Port = 9883
    """Port to listen on; 0 takes any free port."""
    certificate: PathText = ""
    """The certificate chain, PEM, for HTTPS; empty is plain HTTP."""
    key: PathText = ""
    """Its private key, PEM; the file must not be readable by other users of the machine."""
    hosts: tuple[str, ...] = ()
    """Host names of this machine in URLs, besides localhost, the address and the host name of this
    machine; "*" allows any. Requests with other host names are refused, as protection against DNS
    rebinding."""


class ViewToken(Section, frozen=True):
    """A program that uses the HTTP API; write one [[view.token]] for each (see `roamcast user token`)."""

    name: Name
    """Name of the program in the log."""
    sha256: Fingerprint
    """The SHA-256 of the token, which the program sends as "Authorization: Bearer TOKEN"."""
    may: Literal["read", "operate"] = "read"
    """"operate" also sees the names of clients, and may disconnect clients, drain and forget brokers."""


class View(Section, frozen=True):
    """The live view in the browser and the HTTP API behind it, on the listener of [metrics]. Everything but
    enabled is read again on SIGHUP."""

    enabled: bool | None = None
    """Whether to serve the view and the API; "none": only if metrics.address is a loopback address. On any
    other address readers must log in."""
    anonymous: Literal["auto", "never"] = "auto"
    """Reading without a login: "auto" allows it on loopback addresses, "never" forbids it."""
    readers: tuple[UserPattern, ...] = ("*",)
    """Users of this broker (see access) that may read. "ops-*" means all names that begin with "ops-"."""
    operators: tuple[UserPattern, ...] = ()
    """Users that may also operate: disconnect clients, drain and forget brokers."""
    names: Literal["operators", "readers"] = "operators"
    """Who sees the names of clients; other readers see pseudonyms (made with events.pseudonym_key, if
    set)."""
    streams_max: Annotated[int, Meta(ge=1, le=1000)] = 32
    """Open pages that are updated concurrently."""
    latitude: Annotated[float, Meta(ge=-90, le=90)] | None = None
    """Latitude of this broker on the map, in degrees; "none" draws the broker as part of a tree."""
    longitude: Annotated[float, Meta(ge=-180, le=180)] | None = None
    """Longitude of this broker on the map, in degrees."""
    tokens: tuple[ViewToken, ...] = field(name="token", default=())


class Log(Section, frozen=True):
    """The broker's log, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object per line."""


class Events(Section, frozen=True):
    """The event log: Parquet files for `roamcast pipeline`. It traces the movements of clients, so it
    is off by default."""

    level: Level = "none"
    """"none" writes nothing; "counters" what an audit needs; "full" also every hop."""
    folder: PathText = ""
    """Folder for the files; empty is the folder "events" in the data folder."""
    pseudonym_key: SecretText = ""
    """With a key, client names are replaced by keyed pseudonyms; use the same at every broker."""
    pseudonym_key_file: PathText = ""
    """A file with that key."""
    attributes: bool = False
    """Whether attributes of notifications, and filters on them, are written; the audit needs them."""
    file_s: Seconds = 60.0
    """Seconds after which a file is closed and can be read."""
    retention_days: Annotated[float, Meta(gt=0)] | None = 30.0
    """Files older than this are deleted; "none" keeps them."""


class StateSection(Section, frozen=True):
    """Other state that clients report, for filters on my.NAME; write one [[location.state]] for each."""

    name: VariableName
    """NAME, which filters write as my.NAME."""
    graph: PathText = ""
    """File of its values and the steps between them, in the format of the movement graph; empty: the state
    is a number."""
    fall: Change = 0.0
    """Largest decrease of a number in one step."""
    rise: Change = 0.0
    """Largest increase of a number in one step."""
    lowest: Bound = -1e12
    """Lowest possible value."""
    highest: Bound = 1e12
    """Highest possible value."""


PlaceText = Annotated[
    str, Meta(pattern=r"^(-?\d{1,3}(\.\d+)?,-?\d{1,3}(\.\d+)?)?$", description="LATITUDE,LONGITUDE")
]


class SteeringBroker(Section, frozen=True):
    """A broker that clients can be sent to; write one [[steering.broker]] for each."""

    id: Name
    """The id of that broker."""
    address: Endpoint
    """Address at which clients reach that broker."""
    position: PlaceText = ""
    """Position of that broker, as 43.263,-2.935, for clients that report their position; empty: distance
    does not count."""


class Steering(Section, frozen=True):
    """Steering: to which broker clients are sent (docs/client.md)."""

    signals: PathText = ""
    """A file with a line `NAME BROKER` for each access point (BSSID) or cell that clients can hear."""
    clients_max: Count | None = None
    """With this many connected clients, further clients without a session here are sent to `overflow`:
    CONNACK says "use another server" with its address."""
    overflow: str = ""
    """The id of that broker, which must be one of [[steering.broker]]."""
    brokers: tuple[SteeringBroker, ...] = field(name="broker", default=())


class Location(Section, frozen=True):
    """Logical mobility: filters that depend on where the client is; the same at every broker."""

    movement_graph: PathText = ""
    """The file of the movement graph; empty allows filters on myloc only with positions."""
    position_step_m: Distance | None = None
    """For locations that are positions on the earth: the largest distance in metres between two reports of
    a client; "none": locations are names."""
    attributes: Annotated[tuple[str, ...], Meta(max_length=2)] = ()
    """Attributes of clients' own notifications that contain their location: ["lat", "lon"] (two numbers),
    or one name of a location or position; empty: clients report only on $roamcast/move."""
    topics: tuple[str, ...] = ()
    """Topics of the notifications whose attributes are read as locations; empty: all topics."""
    at: str = ""
    """Location of clients of this broker that have not reported one: a name, or a position as
    43.263,-2.935; empty: unknown. Only this key may differ between brokers."""
    zones: PathText = ""
    """A GeoJSON file of polygons, each with a property "name"; filters may say INSIDE 'that name'."""
    zone_dwell_s: Stay = 0.0
    """Seconds that a client must have been in a zone before $roamcast/zones/NAME/enter is published."""
    zone_hysteresis_m: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """Distance in metres outside a zone from which $roamcast/zones/NAME/leave is published."""
    stay_s: Stay | None = None
    """Shortest time that clients stay at a location; "none" learns it from the moves of each client."""
    stay_first_s: Stay = 1.0
    """Assumed stay until a client has moved twice."""
    states: tuple[StateSection, ...] = field(name="state", default=())


class Replication(Section, frozen=True):
    """Replicas of this broker on other machines. All replicas of a site have the same id, network, peers
    and secrets, and their own data folders. etcd decides which of them leads."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN + "|^$")] = ""
    """The name of this replica, different from those of the other replicas; empty: no replication."""
    address: Host = "127.0.0.1"
    """Address to listen on for the other replicas. An address that is not loopback needs a secret."""
    port: Port = 7883
    """The port for the other replicas; 0 takes any free one."""
    advertise: PeerEndpoint = ""
    """Address at which the other replicas reach this one; empty uses address and port."""
    reference: str = ""
    """HOST:PORT at which clients reach this replica: a follower refers its clients to the leader's."""
    secret: SecretText = ""
    """Shared secret of the replicas, at least 16 characters; preferably kept in a file."""
    secret_file: PathText = ""
    """A file with the secret."""
    etcd: tuple[str, ...] = ("http://127.0.0.1:2379",)
    """URLs of the client ports of etcd's members."""
    etcd_ca: PathText = ""
    """For https: certificate authorities of etcd, PEM; empty uses those of the system."""
    etcd_certificate: PathText = ""
    """For https: client certificate for etcd, PEM; empty sends none."""
    etcd_key: PathText = ""
    """Its private key, PEM."""
    etcd_user: str = ""
    """User name at etcd; empty logs in without one."""
    etcd_password: SecretText = ""
    """The password of that user; preferably kept in a file."""
    etcd_password_file: PathText = ""
    """A file with the password."""
    lease_s: Annotated[int, Meta(ge=2, le=300)] = 3
    """Seconds after which a silent leader is replaced. Clients wait for about this long after a leader
    fails."""
    patience_s: Seconds = 1.0
    """How long an in-sync follower may delay acknowledgements before the site continues without it."""


class Config(Section, frozen=True):
    """A broker's configuration."""

    id: Name = "broker"
    """This broker's id, different from that of every other broker of the network."""
    network: Name = "roamcast"
    """The network's name; brokers of another network are refused as peers."""
    data: PathText = "roamcast-data"
    """The folder for all persistent data; used by one broker only."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of processes that serve clients behind the same listeners: at most one per core. Quotas apply
    to the site; each worker has a share."""
    listeners: tuple[Listener, ...] = field(name="listener", default=(Listener(),))
    peers: tuple[Peer, ...] = field(name="peer", default=())
    link: Link = Link()
    detours: tuple[Detour, ...] = field(name="detour", default=())
    relay: Relay = Relay()
    discovery: Discovery = Discovery()
    mobility: Mobility = field(default_factory=Mobility)
    election: ElectionSettings = ElectionSettings()
    journal: Journal = Journal()
    mqtt: Mqtt = Mqtt()
    quotas: Quotas = Quotas()
    access: Access = Access()
    metrics: Metrics = Metrics()
    view: View = View()
    log: Log = Log()
    events: Events = Events()
    location: Location = Location()
    replication: Replication = Replication()
    steering: Steering = Steering()

    @property
    def serves_view(self) -> bool:
        """Return whether the live view and the HTTP API are served."""
        if not self.metrics.enabled or self.view.enabled is False:
            return False
        return self.view.enabled is True or is_loopback(self.metrics.address)

    @property
    def journal_folder(self) -> Path:
        return Path(self.journal.folder or Path(self.data) / "journal")

    @property
    def events_folder(self) -> Path:
        return Path(self.events.folder or Path(self.data) / "events")

    @property
    def site(self) -> str:
        """Qualifier for the users that authenticate here."""
        return site_name(self.id, self.access.realm)

    @property
    def access_rules(self) -> AccessRules:
        """Return the rules in the form of the broker's state machine."""
        default: Default = "deny" if self.access.rules else "allow"
        if self.access.default != "auto":
            default = self.access.default
        return AccessRules(self.access.rules, default)

    def allows_anonymous(self, listener: Listener) -> bool:
        """Return whether clients may connect to this listener without authentication."""
        if listener.anonymous is not None:
            return listener.anonymous
        # A load balancer on this machine forwards clients from anywhere.
        is_local = is_loopback(listener.address) and not listener.proxy_protocol
        if self.access.anonymous == "auto":
            return is_local and not self.access.has_logins
        return self.access.anonymous == "loopback" and is_local
