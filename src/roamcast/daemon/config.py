"""A broker's configuration: its sources, and checks that involve several keys.

Settings that would open the broker to strangers, or could never work, are refused. Allowed but unwise
settings give a warning. Messages name the keys; the loader adds the file. Files are opened and read here, so
that a reload with a bad file fails before anything has changed.
"""

from __future__ import annotations

import ipaddress
import operator
from collections import Counter
from collections.abc import Iterable

import msgspec

from roamcast.config.addresses import is_loopback, join_endpoint, split_endpoint
from roamcast.config.loading import Program, Warn, check_secret
from roamcast.config.private_files import check_readable
from roamcast.config.sections import (
    Config,
    Detour,
    Link,
    Listener,
    Location,
    Peer,
    StateSection,
    Steering,
    SteeringBroker,
    ViewToken,
)
from roamcast.daemon.settings import read_graph, read_steering, read_zones
from roamcast.daemon.workers import check_workers
from roamcast.errors import InputError, did_you_mean
from roamcast.filters.patterns import TopicPattern
from roamcast.mobility import MOBILE_PROTOCOLS, PROTOCOLS, check_combination
from roamcast.mobility.moving.mobile import MobileProtocol
from roamcast.mqtt.server.access import Access as CompiledRules
from roamcast.mqtt.server.access import Rule
from roamcast.net.handshake import SECRETS_MAX
from roamcast.net.hook import check_hook
from roamcast.net.peer_list import read_secrets
from roamcast.net.proxy_protocol import read_networks
from roamcast.net.revocation import read_lists
from roamcast.net.tls import http_context, link_contexts, listener_context
from roamcast.net.tokens import load_keys
from roamcast.net.users import read_users
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.variables import Variable

FLAGS = {
    "id": "--id",
    "data": "--data",
    "workers": "--workers",
    "listener": "--listen",
    "peer": "--peer",
    "link.address": "--peer-listen",
    "link.port": "--peer-listen",
    "mobility.protocol": "--mobility",
    "discovery.enabled": "--discover",
    "discovery.interface": "--discover",
    "discovery.port": "--discover",
}

ORDERED = (
    ("link.reconnect_min_s", "at most", "link.reconnect_max_s"),
    ("link.heartbeat_s", "less than", "link.timeout_s"),
    ("access.backoff_s", "at most", "access.backoff_max_s"),
    ("quotas.queue_bytes_max", "at least", "mqtt.packet_bytes_max"),
    ("quotas.buffered_bytes_max", "at least", "mqtt.packet_bytes_max"),
    ("quotas.retained_bytes_max", "at least", "mqtt.packet_bytes_max"),
)
"""Pairs of keys that bound each other, and how they compare."""
COMPARED = {"at most": operator.le, "less than": operator.lt, "at least": operator.ge}


def check(config: Config, warn: Warn) -> None:
    """Refuse settings that cannot work or are not safe."""
    check_addresses(config)
    for number, listener in enumerate(config.listeners):
        check_listener(f"listener.{number}", listener, config, warn)
    check_peers(config)
    check_detours(config, warn)
    check_link(config, warn)
    check_mobility(config)
    check_discovery(config)
    check_access(config, warn)
    check_order(config)
    if config.events.level != "none" and not config.events.pseudonym_key:
        warn("the event log names clients as they are; events.pseudonym_key_file replaces their names")
    check_http(config, warn)
    check_location(config.location)
    check_steering(config.steering)
    check_replication(config)
    check_workers(config)


def check_replication(config: Config) -> None:
    """Refuse replication settings that are unsafe or unreachable."""
    replication = config.replication
    if not replication.name:
        return
    if config.mobility.protocol in MOBILE_PROTOCOLS:
        raise InputError(
            f"replication.name: brokers with mobility.protocol = {config.mobility.protocol}"
            " cannot be replicated"
        )
    if replication.secret:
        check_secret("replication.secret", replication.secret)
    elif not is_loopback(replication.address):
        raise InputError(
            f"replication.address = {replication.address}: replicas that are not on loopback must prove who "
            "they are; set replication.secret_file"
        )
    if not replication.etcd:
        raise InputError("replication.etcd: name at least one member of etcd")
    for number, url in enumerate(replication.etcd):
        if not url.startswith(("http://", "https://")):
            raise InputError(f"replication.etcd.{number} = {url}: valid is http://HOST:PORT or https://…")
    if bool(replication.etcd_user) != bool(replication.etcd_password):
        raise InputError("replication: etcd_user and etcd_password_file belong together; set both or neither")


def check_http(config: Config, warn: Warn) -> None:
    """Check the HTTP listener and who may read the live view."""
    metrics, view = config.metrics, config.view
    if (view.latitude is None) != (view.longitude is None):
        raise InputError("view: latitude and longitude belong together; set both or neither")
    names = Counter(token.name for token in view.tokens)
    for number, token in enumerate(view.tokens):
        if names[token.name] > 1:
            raise InputError(
                f"view.token.{number}.name = {token.name}: another token has this name; rename one"
            )
    if not metrics.enabled:
        return
    is_secure = bool(metrics.certificate or metrics.key)
    if is_secure:
        files = {"certificate": metrics.certificate, "key": metrics.key}
        refuse_missing("metrics", "metrics", files, needed=("certificate", "key"))
        http_context(metrics)
    if is_loopback(metrics.address):
        return
    warn(f"metrics.address = {metrics.address}: anyone who can connect can read the metrics")
    if config.serves_view and not (config.access.has_logins or view.tokens):
        raise InputError(
            f"view.enabled: nobody could log in at metrics.address = {metrics.address}; "
            f"set access.users, or add a [[view.token]]"
        )
    if config.serves_view and not is_secure:
        warn("view: passwords and tokens travel unencrypted; set metrics.certificate and metrics.key")


def check_location(location: Location) -> None:
    if location.movement_graph:
        check_readable(location.movement_graph, "location.movement_graph")
    if location.movement_graph and location.position_step_m is not None:
        raise InputError("location: give movement_graph (locations are names) or position_step_m, not both")
    if location.zones:
        check_readable(location.zones, "location.zones")
        read_zones(location.zones)
    names: dict[str, None] = {}
    if location.movement_graph or location.position_step_m is not None:
        names["location"] = None
    check_told_and_lent(location)
    for number, state in enumerate(location.states):
        key = f"location.state.{number}"
        if state.name in names:
            raise InputError(f"{key}.name = {state.name}: there is one of that name already; choose another")
        names[state.name] = None
        if state.graph:
            check_readable(state.graph, f"{key}.graph")
        elif state.lowest > state.highest:
            raise InputError(f"{key}: lowest = {state.lowest:g} is above highest = {state.highest:g}")


def check_told_and_lent(location: Location) -> None:
    """Check where clients report their position, and the position assumed until they do."""
    for number, topic in enumerate(location.topics):
        try:
            TopicPattern(topic)
        except InputError as error:
            raise InputError(f"location.topics.{number}: {error}") from None
    settings = (("attributes", location.attributes), ("at", location.at))
    for key in (key for key, value in settings if value):
        if not location.movement_graph and location.position_step_m is None:
            raise InputError(
                f"location.{key}: set movement_graph (locations are names) or position_step_m too"
            )
    if location.movement_graph and len(location.attributes) == 2:
        raise InputError("location.attributes: locations are names here; give the name of one attribute")
    if location.at:
        variable: Variable = Earth(location.position_step_m or 0.0)
        if location.movement_graph:
            variable = read_graph(location.movement_graph)
        try:
            variable.check(location.at)
        except InputError as error:
            raise InputError(f"location.at: {error}") from None


def check_steering(steering: Steering) -> None:
    if steering.signals:
        check_readable(steering.signals, "steering.signals")
    read_steering(steering)


def check_addresses(config: Config) -> None:
    """Refuse two listeners on one address and port."""
    taken = [(f"listener.{i}", one.address, one.port) for i, one in enumerate(config.listeners)]
    if config.link.port is not None:
        taken.append(("link", config.link.address, config.link.port))
    if config.replication.name:
        taken.append(("replication", config.replication.address, config.replication.port))
    if config.metrics.enabled:
        taken.append(("metrics", config.metrics.address, config.metrics.port))
    seen: dict[tuple[str, int], str] = {}
    for key, address, port in taken:
        if port and seen.setdefault((address, port), key) != key:
            endpoint = join_endpoint(address, port)
            raise InputError(f"{key} and {seen[address, port]} are both {endpoint}; change one of the ports")


def check_listener(key: str, listener: Listener, config: Config, warn: Warn) -> None:
    where = f"{key} ({listener.kind} {join_endpoint(listener.address, listener.port)})"
    check_listener_files(where, key, listener)
    if listener.proxy_protocol != bool(listener.trusted_proxies):
        raise InputError(f"{where}: proxy_protocol and trusted_proxies belong together; set both or neither")
    read_networks(listener.trusted_proxies, f"{key}.trusted_proxies")
    anonymous = config.allows_anonymous(listener)
    if not (anonymous or config.access.has_logins or listener.client_ca):
        raise InputError(
            f"{where}: nobody could connect; set access.users or {key}.client_ca, "
            f"or {key}.anonymous = true to let everyone in"
        )
    if is_loopback(listener.address):
        return
    if anonymous:
        warn(f"{where}: anyone who can connect is accepted without a password ({key}.anonymous = true)")
    elif config.access.has_logins and not listener.is_secure:
        warn(f"{where}: passwords travel unencrypted; kinds tls and wss encrypt them")


def check_listener_files(where: str, key: str, listener: Listener) -> None:
    files = {
        "certificate": listener.certificate,
        "key": listener.key,
        "client_ca": listener.client_ca,
        "crl": listener.crl,
    }
    if not listener.is_secure:
        given = next((name for name, path in files.items() if path), None)
        if given or listener.require_certificate:
            secure = "wss" if listener.is_websocket else "tls"
            raise InputError(
                f'{where}: {given or "require_certificate"} is only for tls and wss; set kind = "{secure}"'
            )
        return
    for name in ("require_certificate", "crl"):
        if getattr(listener, name) and not listener.client_ca:
            raise InputError(f"{where}: {name} needs client_ca, a file with the certificates of the signers")
    refuse_missing(where, key, files, needed=("certificate", "key"))
    listener_context(listener, key)
    if listener.crl:
        read_lists(listener.crl, f"{key}.crl")


def refuse_missing(where: str, key: str, files: dict[str, str], needed: tuple[str, ...]) -> None:
    for name in needed:
        if not files[name]:
            raise InputError(f"{where}: {name} is missing; name a PEM file in {key}.{name}")


def check_peers(config: Config) -> None:
    ids = Counter(peer.id for peer in config.peers)
    for number, peer in enumerate(config.peers):
        key = f"peer.{number}"
        if peer.id == config.id:
            raise InputError(f"{key}.id = {peer.id}: this is the id of this broker; name a neighbour")
        if ids[peer.id] > 1:
            raise InputError(f"{key}.id = {peer.id}: {ids[peer.id]} peers have this id; keep one")
        check_border(key, peer, config)
        if not peer.address:
            continue
        try:
            _, port = split_endpoint(peer.address)
        except InputError as error:
            raise InputError(f"{key}.address = {error}") from None
        if port == 0:
            raise InputError(f"{key}.address = {peer.address}: valid is a port from 1 to 65535")


def check_border(key: str, peer: Peer, config: Config) -> None:
    """Check the import and export rules of one peer."""
    read_secrets(peer.secret_files, key)
    if len(peer.secret_files) > SECRETS_MAX:
        raise InputError(f"{key}.secret_files: valid are {SECRETS_MAX} files at most")
    if peer.certificate_sha256 and not config.link.tls:
        raise InputError(f"{key}.certificate_sha256 is only for links with TLS; set link.tls = true")
    for name, rules in (("import", peer.imports), ("export", peer.exports)):
        for rule in rules:
            try:
                TopicPattern(rule.removeprefix("!"))
            except InputError as error:
                raise InputError(f"{key}.{name} = {rule}: {error}") from None
    if peer.prefix and (peer.clients or "groups" in peer.may):
        # Sessions and their queues contain topics; only notifications and subscriptions are renamed.
        raise InputError(
            f"{key}.prefix = {peer.prefix}: sessions cannot move where topics have other names; set "
            f'{key}.clients = [] and {key}.may = ["data", "subscriptions"]'
        )
    check_guest(key, peer, config)
    if not peer.address and config.link.port is None:
        raise InputError(
            f"{key}: {peer.id} could not connect here, and has no address; set {key}.address or link.port"
        )


def check_detours(config: Config, warn: Warn) -> None:
    """Refuse detours without authentication."""
    link, peers = config.link, {peer.id: peer for peer in config.peers}
    for number, detour in enumerate(config.detours):
        key = f"detour.{number}"
        if detour.id == config.id:
            raise InputError(f"{key}.id = {detour.id}: this is the id of this broker; name another one")
        for peer in detour.peers:
            if peer != "*" and peer not in peers:
                raise InputError(f"{key}.peers: {peer} is no [[peer]] of this broker")
        listed = peers.get(detour.id)
        if not (link.tls or link.secret or detour.secret_files or (listed and listed.secret_files)):
            told = f"{key}: detours need authentication; set link.secret_file or link.tls"
            if not is_loopback(split_endpoint(detour.address)[0]):
                raise InputError(told)
            warn(told)
        read_secrets(detour.secret_files, key)
    read_secrets(config.relay.secret_files, "relay")
    if not config.relay.brokers:
        return
    if link.port is None:
        raise InputError("relay.brokers: these brokers could not connect here; set link.port")
    if not (link.tls or link.secret or config.relay.secret_files):
        raise InputError("relay.brokers needs authentication; set link.secret_file or link.tls")


def check_guest(key: str, peer: Peer, config: Config) -> None:
    """Refuse rules that the mobility protocol does not enforce."""
    name = config.mobility.protocol
    usual = Peer(id=peer.id)
    rules = {
        "clients": peer.clients != usual.clients,
        "import": peer.imports != usual.imports,
        "export": peer.exports != usual.exports,
        "prefix": peer.prefix != usual.prefix,
        "may": peer.may != usual.may,
    }
    changed = [rule for rule, is_other in rules.items() if is_other]
    if name in MOBILE_PROTOCOLS and changed:
        raise InputError(
            f"{key}: with mobility.protocol = {name} all brokers are of one organisation, and know every "
            f"session; leave out {', '.join(changed)}"
        )
    protocol = PROTOCOLS.get(name)
    if peer.is_guest and protocol is not None and "honest_peers" in protocol.assumes:
        raise InputError(
            f"{key}: {peer.id} may speak for some clients only, but mobility.protocol = {name} believes "
            f"every broker; valid is multi_hop_handoff, for example"
        )


def check_link(config: Config, warn: Warn) -> None:
    link = config.link
    check_secret("link.secret", link.secret)
    files = {"certificate": link.certificate, "key": link.key, "ca": link.ca, "crl": link.crl}
    if link.tls:
        refuse_missing("link.tls", "link", files, needed=("certificate", "key", "ca"))
        link_contexts(link)
    elif any(files.values()):
        given = next(name for name, path in files.items() if path)
        raise InputError(f"link.{given} is only for links with TLS; set link.tls = true")
    check_link_addresses(config, link, warn)


def check_link_addresses(config: Config, link: Link, warn: Warn) -> None:
    """Refuse links to other machines without authentication."""
    ends = [("link.address", link.address, _listeners_prove(config))] if link.port is not None else []
    ends += [
        (f"peer.{i}.address", split_endpoint(peer.address)[0], bool(peer.secret_files or link.secret))
        for i, peer in enumerate(config.peers)
        if peer.address
    ]
    for key, host, has_secret in ends:
        if is_loopback(host) or link.tls:
            continue
        if not has_secret:
            raise InputError(
                f"{key} = {host}: a link that is not on loopback needs authentication; "
                f"set link.secret_file, or link.tls with certificate, key and ca"
            )
        warn(f"{key} = {host}: links are authenticated but not encrypted; link.tls = true encrypts them")
        return


def _listeners_prove(config: Config) -> bool:
    """Return true if every peer that may connect has a secret."""
    return bool(config.link.secret) or (
        bool(config.peers) and all(peer.secret_files for peer in config.peers)
    )


def check_discovery(config: Config) -> None:
    discovery, link = config.discovery, config.link
    if not discovery.enabled:
        return
    if config.mobility.protocol not in MOBILE_PROTOCOLS:
        raise InputError(
            f"discovery.enabled: with mobility.protocol = {config.mobility.protocol} links are permanent, "
            f"and peers are listed; valid with discovery are {_names(_offered())}"
        )
    try:
        ipaddress.IPv4Address(discovery.group)
    except ValueError:
        raise InputError(f"discovery.group = {discovery.group}: not an IPv4 address") from None
    if link.port is None:
        raise InputError("discovery.enabled: nobody could connect; set link.port (0 takes any free port)")
    is_local = discovery.interface == "lo" or is_loopback(discovery.interface)
    if not is_local and not link.secret:
        raise InputError(
            f"discovery.interface = {discovery.interface}: announcements there must be signed; "
            f"set link.secret_file"
        )
    if not is_local and is_loopback(link.address):
        raise InputError(
            f"discovery.interface = {discovery.interface}: nobody there could connect to "
            f'link.address = {link.address}; set link.address, where "0.0.0.0" means every network'
        )


def _offered() -> dict[str, type[MobileProtocol]]:
    """Return the protocols for brokers that move that give a delivery guarantee, by name."""
    return {name: one for name, one in MOBILE_PROTOCOLS.items() if one.keeps_promises}


def _names(protocols: Iterable[str]) -> str:
    return ", ".join(sorted(protocols))


def check_mobile(config: Config) -> None:
    """Check settings of protocols whose brokers may move."""
    mobility = config.mobility
    if mobility.protocol not in _offered():
        raise InputError(
            f"mobility.protocol = {mobility.protocol}: it promises nothing, and is for comparisons in the "
            f"simulator; valid for brokers that move are {_names(_offered())}"
        )
    try:
        config.election.check()
    except InputError as error:
        raise InputError(f"election: {error}") from None
    if config.location != Location():
        raise InputError(
            f"location: {mobility.protocol} does not offer filters on the client's own state; leave it out"
        )
    if mobility.routing:
        raise InputError(
            f"mobility.routing = {mobility.routing}: {mobility.protocol} knows the way to every subscriber "
            f"by itself; leave it out"
        )


def check_mobility(config: Config) -> None:
    mobility = config.mobility
    if mobility.protocol in MOBILE_PROTOCOLS:
        check_mobile(config)
        return
    protocol = PROTOCOLS.get(mobility.protocol)
    if protocol is None:
        known = [*PROTOCOLS, *_offered()]
        hint = did_you_mean(mobility.protocol, known) or f"valid are {_names(known)}"
        raise InputError(f"mobility.protocol = {mobility.protocol}: there is no such protocol; {hint}")
    for name, value in msgspec.structs.asdict(mobility.settings).items():
        if isinstance(value, int | float) and value < 0:
            raise InputError(f"mobility.settings.{name} = {value}: valid is 0 or more")
    try:
        check_combination(protocol, mobility.routing or protocol.strategies[0])
        protocol.check(mobility.settings)
    except InputError as error:
        raise InputError(f"mobility: {error}") from None


def check_access(config: Config, warn: Warn) -> None:
    access = config.access
    CompiledRules(config.access_rules)
    if access.users:
        read_users(access.users)
    if access.realm_brokers and not access.realm:
        raise InputError("access.realm_brokers: name the realm that these brokers share in access.realm")
    if access.realm and not access.has_logins and not any(one.client_ca for one in config.listeners):
        warn(f"access.realm = {access.realm}: nobody can prove to be one of its users here")
    load_keys(access.jwt)
    check_hook(access.http)
    if access.default == "allow" and access.rules and not any(one.verdict == "deny" for one in access.rules):
        warn('access.default = "allow" and no rule denies anything: the rules have no effect')


def check_order(config: Config) -> None:
    for key, relation, other in ORDERED:
        value, bound = operator.attrgetter(key, other)(config)
        if not COMPARED[relation](value, bound):
            raise InputError(f"{key} = {value}: valid is {relation} {other}, {bound}")
    journal = config.journal
    least = max(journal.snapshot_after_bytes, 2 * journal.segment_bytes)
    if journal.bytes_max < least:
        raise InputError(
            f"journal.bytes_max = {journal.bytes_max}: valid is at least {least}, which is "
            f"journal.snapshot_after_bytes or twice journal.segment_bytes"
        )


BROKER = Program(
    Config,
    "ROAMCAST",
    check,
    {
        "peer": Peer(id="b", address="127.0.0.1:7001"),
        "detour": Detour(id="c", address="127.0.0.1:7002"),
        "access.rule": Rule(verdict="allow", topic="cars/%c/#", user="user:*"),
        "view.token": ViewToken(name="dashboard", sha256="0123456789abcdef" * 4),
        "steering.broker": SteeringBroker(id="b", address="127.0.0.1:1884"),
        "location.state": StateSection(name="budget", fall=10.0, lowest=0.0, highest=100.0),
    },
    flag_names=FLAGS,
    other_variables=("ROAMCAST_DEBUG", "ROAMCAST_REGENERATE"),
)
load = BROKER.load
