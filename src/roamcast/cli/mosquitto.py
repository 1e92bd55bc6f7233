"""Flags of Mosquitto's clients that `roamcast pub` and `roamcast sub` share."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from roamcast.cli.flags import Flag, Values, number, of_packet, one_of, take_property, whole_number
from roamcast.errors import InputError

if TYPE_CHECKING:
    import ssl

    from roamcast.client import Client, Will

FOR_EVER = 0xFFFF_FFFF
VERSIONS = {"5": 5, "mqttv5": 5, "311": 4, "mqttv311": 4, "4": 4, "3.1.1": 4}
URL = re.compile(
    r"(?P<scheme>mqtts?)://(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:@/\[\]]+)(?::(?P<port>\d{1,5}))?/(?P<topic>.+)"
)


def version(word: str) -> int:
    if word not in VERSIONS:
        raise ValueError("5 (or mqttv5) or 311 (or mqttv311)")
    return VERSIONS[word]


def seconds_or_ever(word: str) -> int:
    return FOR_EVER if word in ("-1", "∞") else whole_number(0, FOR_EVER)(word)


QOS = Flag(
    ("-q", "--qos"), "0: at most once; 1: at least once; 2: exactly once.", "QOS", 0, whole_number(0, 2)
)

CONNECTION = (
    Flag(("-h", "--host"), "The broker's host.", "HOST", "localhost"),
    Flag(("-p", "--port"), "Its port: 1883, or 8883 with TLS.", "PORT", None, whole_number(1, 65_535)),
    Flag(
        ("-L", "--url"),
        "Host, port, credentials and topic as one URL: mqtt(s)://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC.",
        "URL",
    ),
    Flag(("-i", "--id"), "The client id. [default: random]", "ID"),
    Flag(("-I", "--id-prefix"), "Prefix of a random client id.", "PREFIX"),
    Flag(("-c", "--disable-clean-session"), "Keep the session at the end, and resume it next time."),
    Flag(
        ("-x", "--session-expiry-interval"),
        "With -c: seconds to keep the session; -1 (the default) as long as the broker allows.",
        "SECONDS",
        None,
        seconds_or_ever,
    ),
    Flag(("-k", "--keepalive"), "Keep-alive interval.", "SECONDS", 60, whole_number(0, 65_535)),
    Flag(("-V", "--protocol-version"), "MQTT version: 5 (mqttv5) or 311 (mqttv311).", "VERSION", 5, version),
    Flag(("-u", "--username"), "User name.", "NAME"),
    Flag(("-P", "--pw"), "Password; the variable ROAMCAST_PASSWORD is safer.", "PASSWORD"),
    Flag(("-A", "--bind"), "The address of this machine to connect from.", "ADDRESS"),
    Flag(
        ("-M", "--max-inflight"),
        "Maximum number of unacknowledged publishes.",
        "COUNT",
        None,
        whole_number(1, 65_535),
    ),
    Flag(("--nodelay",), "No effect: small packets are always sent at once."),
    Flag(("-d", "--debug"), "Log sent and received packets on stderr."),
    Flag(("--quiet",), "Print nothing on stderr."),
    Flag(
        ("-D", "--property"),
        "A user property of the message, or in Mosquitto's words a property of a packet (connect, publish, "
        "will, subscribe). Repeatable.",
        "NAME=VALUE | PACKET PROPERTY VALUE",
        is_repeatable=True,
        take=take_property,
    ),
    Flag(("--will-topic",), "Topic of a will, published if this client disconnects unexpectedly.", "TOPIC"),
    Flag(("--will-payload",), "Payload of the will. [default: empty]", "PAYLOAD"),
    Flag(("--will-qos",), "Its QoS.", "QOS", 0, whole_number(0, 2)),
    Flag(("--will-retain",), "Retain the will."),
    Flag(("--cafile",), "Use TLS; trust the authorities in this PEM file.", "FILE"),
    Flag(("--capath",), "Use TLS; trust the authorities in this folder.", "FOLDER"),
    Flag(("--tls", "--tls-use-os-certs"), "Use TLS; trust the authorities of the system."),
    Flag(("--cert",), "This client's certificate, PEM.", "FILE"),
    Flag(("--key",), "Its private key, PEM.", "FILE"),
    Flag(("--insecure",), "Do not check the host name in the certificate."),
    Flag(("--ciphers",), "The ciphers to use, as OpenSSL lists them.", "LIST"),
    Flag(
        ("--tls-version",),
        "The TLS version: tlsv1.2 or tlsv1.3.",
        "VERSION",
        None,
        one_of({"tlsv1.2": "TLSv1_2", "tlsv1.3": "TLSv1_3"}),
    ),
    Flag(("--tls-alpn",), "ALPN protocol, as in mqtt.", "NAME"),
    Flag(
        ("--roam",),
        "Attach to the first of these brokers, then move to the next, cyclically.",
        "[ID=]ADDRESS,…",
    ),
    Flag(("--every",), "With --roam: seconds between two moves.", "SECONDS", 5.0, number(0.01)),
    Flag(("--proclaim",), "With --roam: tell each broker where the client goes next."),
)

NOT_OF_PYTHON = "Python's TLS cannot do this; use --cert and --key"
ABSENT = {
    "-S": "SRV records are not looked up; name the host with -h",
    "-o": "there are no option files; put the flags into a shell alias",
    "--unix": "brokers are reached over TCP; name the host with -h",
    "--proxy": "no SOCKS proxy is used; a port forwarded by ssh -L does the same",
    "--psk": NOT_OF_PYTHON,
    "--psk-identity": NOT_OF_PYTHON,
    "--keyform": NOT_OF_PYTHON,
    "--tls-engine": NOT_OF_PYTHON,
    "--tls-engine-kpass-sha1": NOT_OF_PYTHON,
    "--mqtt-property": "it is -D, or --property",
}
"""Flags of Mosquitto's clients that are missing here."""


class Target(NamedTuple):
    """Address, user and password of a connection."""

    host: str
    port: int | None
    user: str | None
    password: str | None
    topic: str | None
    is_tls: bool


def target_of(values: Values) -> Target:
    """Return the target from flags or URL; flags override the URL, as in Mosquitto."""
    password = values.pw if values.pw is not None else os.environ.get("ROAMCAST_PASSWORD")
    uses_tls = bool(
        values.tls_use_os_certs or values.cafile or values.capath or values.cert or values.tls_version
    )
    if values.url is None:
        return Target(values.host, values.port, values.username, password, None, uses_tls)
    found = URL.fullmatch(values.url)
    if found is None:
        raise InputError("-L: valid is mqtt(s)://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC")
    user, given = found["user"], found["password"]
    return Target(
        found["host"].strip("[]"),
        int(found["port"]) if found["port"] else values.port,
        values.username or (unquote(user) if user else None),
        password if password is not None else unquote(given) if given is not None else None,
        unquote(found["topic"]),
        uses_tls or found["scheme"] == "mqtts",
    )


def addresses_of(values: Values, target: Target) -> list[str]:
    if values.roam is not None:
        return [address for address in values.roam.split(",") if address]
    host = f"[{target.host}]" if ":" in target.host else target.host
    return [f"{host}:{target.port}" if target.port is not None else host]


def client_of(values: Values, target: Target) -> Client:
    """Make the client for these flags; InputError if flags contradict each other."""
    from roamcast.client.client import connect

    described, user_properties = of_packet(values.property, "connect")
    expiry_s = values.session_expiry_interval
    expiry_s = described.pop("session-expiry-interval", None) if expiry_s is None else expiry_s
    keeps = values.disable_clean_session
    if keeps and not values.id:
        raise InputError("-c keeps a session, which needs a client id: give one with -i")
    if expiry_s and not keeps:
        raise InputError("-x keeps the session for a while: give -c and -i too")
    if values.id is not None and values.id_prefix is not None:
        raise InputError("give one of -i ID and -I PREFIX")
    addresses = addresses_of(values, target)
    if values.proclaim and not all("=" in address for address in addresses):
        raise InputError("--proclaim needs the ids of the brokers: --roam a=127.0.0.1:1883,b=127.0.0.1:1884")
    if values.protocol_version == 4 and values.property:
        raise InputError("MQTT 3.1.1 has no properties: leave -D out, or use version 5")
    return connect(
        addresses,
        client_id=values.id if values.id_prefix is None else values.id_prefix + os.urandom(6).hex(),
        clean=not keeps,
        session_expiry=FOR_EVER if expiry_s is None and keeps else expiry_s or 3600,
        keep_alive=values.keepalive,
        version=values.protocol_version,
        username=target.user,
        password=target.password,
        tls=tls_of(values, target),
        will=will_of(values),
        receive_maximum=described.get("receive-maximum", 1024),
        packet_max=described.get("maximum-packet-size"),
        properties=user_properties,
        in_flight_max=values.max_inflight,
        bind=values.bind,
        records=values.get("records"),
    )


def tls_of(values: Values, target: Target) -> bool | ssl.SSLContext:
    """The TLS context for these flags, or None; ssl is imported only if needed."""
    special = values.capath or values.insecure or values.ciphers or values.tls_version or values.tls_alpn
    if not target.is_tls or not (special or values.cafile or values.cert):
        return target.is_tls
    import ssl

    from roamcast.client.client import tls_context

    context = tls_context(True, values.cafile, values.cert, values.key) or ssl.create_default_context()
    try:
        if values.capath is not None:
            os.listdir(values.capath)  # OpenSSL looks into it later, and says nothing if it is not there.
            context.load_verify_locations(capath=values.capath)
        if values.ciphers is not None:
            context.set_ciphers(values.ciphers)
    except (OSError, ssl.SSLError) as error:
        flag = f"--capath {values.capath}" if values.ciphers is None else f"--ciphers {values.ciphers}"
        raise InputError(f"{flag}: cannot be used ({error.strerror or 'none of them is known'})") from None
    context.check_hostname = not values.insecure
    if values.tls_version is not None:
        context.minimum_version = context.maximum_version = ssl.TLSVersion[values.tls_version]
    if values.tls_alpn is not None:
        context.set_alpn_protocols([values.tls_alpn])
    return context


def will_of(values: Values) -> Will | None:
    from roamcast.client import Will
    from roamcast.client.messages import make_publish

    described, user_properties = of_packet(values.property, "will")
    if values.will_topic is None:
        if values.will_payload is not None or values.will_qos or values.will_retain or described:
            raise InputError("a will needs a topic: give --will-topic")
        return None
    delay_s = described.pop("will-delay-interval", 0)
    payload = (values.will_payload or "").encode("utf-8", "surrogateescape")
    options = message_options(described, user_properties)
    options |= {"qos": values.will_qos, "retain": values.will_retain}
    packet = make_publish(values.protocol_version, values.will_topic, payload, **options)
    return Will(packet.topic, packet.payload, packet.qos, packet.retain, delay_s, packet.properties)


def message_options(described: dict[str, Any], user_properties: list[tuple[str, str]]) -> dict[str, Any]:
    """Translate Mosquitto's property names to those of the client."""
    ours = {"message-expiry-interval": "message_expiry", "payload-format-indicator": "payload_format"}
    options = {ours.get(name) or name.replace("-", "_"): value for name, value in described.items()}
    return {"properties": user_properties, **options}


def say(text: str) -> None:
    print(f"roamcast: {text}", file=sys.stderr, flush=True)
