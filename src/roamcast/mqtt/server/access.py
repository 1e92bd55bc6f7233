"""Who may publish and subscribe what: rules as plain data, and their evaluation without side effects.

Rules are read in order; the first that fits a notification decides, and a default decides where none fits.
A publish is one notification. A subscription stands for every notification that it may ever match: it is
allowed only if the rules would allow each of them, as far as that can be decided, and refused otherwise.
Rules may change, and a session may move to a broker with other rules. So each notification is also checked
when it is delivered, by the current rules of the client's current broker.

Verdicts that do not depend on content are cached by topic: one dict lookup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec

from roamcast.errors import InputError
from roamcast.filters.expression import Attributes, conjunction, disjunction, topic_matches
from roamcast.filters.filter import ALL, NONE, Filter
from roamcast.filters.own import widest
from roamcast.filters.patterns import TopicPattern
from roamcast.filters.selector import TOPIC, parse
from roamcast.state import State

Default = Literal["allow", "deny"]
Texts = str | tuple[str, ...]

EVERYONE = "*"
ANONYMOUS = "anonymous"
USER = "user:"
CERTIFICATE = "certificate:"

DECISIONS_KEPT_MAX = 4096
"""Topics (and subscriptions, and clients) remembered per client; beyond that the cache is cleared."""


class Rule(msgspec.Struct, frozen=True):
    """One rule: what it allows or denies, to whom."""

    __state__ = State("access-rule")

    verdict: Default
    """Verdict if the rule matches."""
    topic: Texts = "#"
    """A topic filter, or a list of them. %u stands for the user's name and %c for the client id; a rule
    that allows never fits for a name that is empty, starts with $ or contains /, + or #."""
    action: Literal["publish", "subscribe", "both", "connect"] = "both"
    """What the client wants to do; "both" is publish and subscribe. Rules for "connect" say which client ids
    a user may have, and have no topic. If there is such a rule, every client id that none of them allows is
    denied."""
    user: Texts = EVERYONE
    """A user's name, "certificate:NAME" for the name in a client certificate, "anonymous", or "*" for
    everyone; or a list of them. A * inside a name stands for anything: "user:*" means all users with a
    password."""
    client: Texts = EVERYONE
    """A client id, or a list of them; * stands for anything and %u for the user's name."""
    where: str = ""
    """A selector over the attributes of the notification, such as "speed < 200"; empty fits always."""


class AccessRules(msgspec.Struct, frozen=True):
    """All rules of a broker, as they are configured and journalled."""

    rules: tuple[Rule, ...] = ()
    default: Default = "allow"


class Grants(msgspec.Struct, frozen=True):
    """The only topic filters that the authenticator allows a client; %u and %c as in rules."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()


class Identity(msgspec.Struct, frozen=True):
    """The authenticated identity of a client; an anonymous one has neither user nor certificate."""

    client: str
    user: str = ""
    certificate: str = ""
    site: str = ""
    """Where the client authenticated: a broker's id, or @REALM where brokers share their users."""
    grants: Grants | None = None
    """Topic filters allowed by the client's token, or by the authentication service; None leaves everything
    to the rules."""

    @property
    def name(self) -> str:
        return self.user or self.certificate

    @property
    def is_plain(self) -> bool:
        """True if the names can each be one level of a topic, and are not among the broker's own."""
        return not any("/" in name or name.startswith("$") for name in (self.name, self.client))

    @property
    def owner(self) -> str:
        """Owner of the client's session: no other owner can take the session with the same client id."""
        if not (self.user or self.certificate):
            return ANONYMOUS
        name = USER + self.user if self.user else CERTIFICATE + self.certificate
        return f"{self.site}/{name}" if self.site else name

    def seen_from(self, site: str) -> Identity:
        """Return the identity for rules of another site: foreign users have their site before their name."""
        if not self.site or self.site == site:
            return self
        user, certificate = (f"{self.site}/{name}" if name else "" for name in (self.user, self.certificate))
        return msgspec.structs.replace(self, user=user, certificate=certificate)


class Decision(NamedTuple):
    """Whether a client may publish to a topic, or receive from it."""

    allowed: bool
    """The verdict if no condition holds."""
    conditions: tuple[tuple[Callable[[Attributes], bool], bool], ...] = ()
    """Conditions in order: the first that holds for the content gives the verdict."""

    @property
    def needs_content(self) -> bool:
        return bool(self.conditions)

    def of(self, attributes: Attributes) -> bool:
        """Return the verdict on a notification with this content, including its topic."""
        return next((verdict for holds, verdict in self.conditions if holds(attributes)), self.allowed)


ALLOWED = Decision(True)
DENIED = Decision(False)


class ClientAccess:
    """What the rules say for one client.

    Matching rules are found on demand, because rules may change while thousands of clients are connected.
    """

    def __init__(
        self,
        rules: Sequence[_Compiled],
        identity: Identity,
        default: bool,
        may_connect: bool = True,
        within: ClientAccess | None = None,
    ) -> None:
        self._rules = rules
        self._identity = identity
        self._default = default
        self._within = within
        """Upper bound of what is allowed."""
        self.may_connect = may_connect
        self._decisions: dict[str, Decision] = {}
        self._receiving: dict[str, Decision] = {}
        self._subscriptions: dict[Filter, bool] = {}

    @cached_property
    def _publish(self) -> list[_Entry]:
        return self._entries("publish")

    @cached_property
    def _subscribe(self) -> list[_Entry]:
        return self._entries("subscribe")

    def _entries(self, action: str) -> list[_Entry]:
        rules = (one for one in self._rules if one.rule.action in (action, "both"))
        return [_Entry(one, self._identity) for one in rules if one.fits(self._identity)]

    @cached_property
    def receives_all(self) -> bool:
        """True if every notification may be delivered to the client, so that none is checked."""
        return self._default and self._within is None and all(entry.allows for entry in self._subscribe)

    def publish(self, topic: str) -> Decision:
        """Return the decision on publishing to a topic."""
        decision = self._decisions.get(topic)
        if decision is None:
            decision = _remember(self._decisions, topic, self._decide(topic))
        return decision

    def receive(self, topic: str) -> Decision:
        """Return the decision on delivering notifications of a topic."""
        decision = self._receiving.get(topic)
        if decision is None:
            is_within = self._within is None or self._within.receive(topic).allowed
            decided = _first_fitting(self._subscribe, topic, self._default) if is_within else DENIED
            decision = _remember(self._receiving, topic, decided)
        return decision

    def needs_content(self, topic: str) -> bool:
        """True if the verdict needs a notification's attributes."""
        return self.publish(topic).needs_content

    def may_publish(self, topic: str, attributes: Attributes) -> bool:
        """Return the verdict on one notification; its topic is the one it is published to."""
        decision = self.publish(topic)
        return decision.of({**attributes, TOPIC: topic}) if decision.conditions else decision.allowed

    def may_subscribe(self, filter: Filter) -> bool:
        """True if everything that the filter may match is allowed."""
        if self.receives_all:
            return True
        allowed = self._subscriptions.get(filter)
        if allowed is None:
            # Conditions on the client's own state are ignored: the client can change that state itself.
            is_within = self._within is None or self._within.may_subscribe(filter)
            allowed = _remember(self._subscriptions, filter, is_within and self._covers(widest(filter)))
        return allowed

    def _decide(self, topic: str) -> Decision:
        if topic.startswith(("$SYS/", "$share/")):
            return DENIED  # These topics are the broker's own.
        if self._within is not None and not self._within.publish(topic).allowed:
            return DENIED
        # Topics that start with $ have special meanings: only an explicit rule allows them.
        return _first_fitting(self._publish, topic, self._default and not topic.startswith("$"))

    def _covers(self, wanted: Filter) -> bool:
        """True if for every notification that `wanted` matches, the first matching rule allows it."""
        allowed: list[Filter] = []
        for entry in self._subscribe:
            filter = entry.filter_towards(wanted)
            if filter is None:
                continue
            if entry.allows:
                allowed.append(filter)
                if _together_cover(allowed, wanted):
                    return True
            elif not _together_cover(allowed, _common(filter, wanted)):
                return False
        return self._default


def _first_fitting(entries: list[_Entry], topic: str, default: bool) -> Decision:
    """Return the verdict of the first entry that matches a notification of this topic."""
    conditions: list[tuple[Callable[[Attributes], bool], bool]] = []
    verdict = default
    for entry in entries:
        if not entry.accepts(topic):
            continue
        where = entry.compiled.where
        if where is None:
            verdict = entry.allows
            break
        conditions.append((where.matches, entry.allows))
    while conditions and conditions[-1][1] == verdict:
        conditions.pop()  # The last condition gives the same verdict as the default.
    return Decision(verdict, tuple(conditions)) if conditions else ALLOWED if verdict else DENIED


def _together_cover(filters: list[Filter], wanted: Filter | None) -> bool:
    """True if the filters together cover another one; False if that cannot be expressed."""
    if wanted is None:
        return False
    if any(one.covers(wanted) for one in filters):
        return True
    if len(filters) < 2:
        return False
    try:
        return Filter(disjunction(one.expression for one in filters)).covers(wanted)
    except InputError:
        return False


def _common(one: Filter, other: Filter) -> Filter | None:
    try:
        return Filter(conjunction([one.expression, other.expression]))
    except InputError:
        return None


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> Any:
    if len(memory) >= DECISIONS_KEPT_MAX:
        memory.clear()
    memory[key] = value
    return value


# --- rules applied to one client ---


class _Topic(NamedTuple):
    """A topic filter of a rule, with its placeholders."""

    text: str
    prefix: str
    """Fixed beginning of every topic that it matches, whatever the names are."""


class _Compiled(NamedTuple):
    """The part of a compiled rule that does not depend on the client."""

    rule: Rule
    users: tuple[Callable[[Identity], bool], ...]
    clients: tuple[Callable[[Identity], object], ...]
    topics: tuple[_Topic, ...]
    where: Filter | None
    reach: Filter
    """What the rule could match for any client with plain names."""

    def fits(self, identity: Identity) -> bool:
        return any(fits(identity) for fits in self.users) and any(fits(identity) for fits in self.clients)


class _Entry:
    """A rule for one client. Patterns are made on demand: most rules concern other topics."""

    __slots__ = ("_filter", "_patterns", "allows", "compiled", "identity")

    def __init__(self, compiled: _Compiled, identity: Identity) -> None:
        self.compiled = compiled
        self.identity = identity
        self.allows = compiled.rule.verdict == "allow"
        self._patterns: dict[str, TopicPattern | None] = {}
        self._filter: Filter | None = None

    def accepts(self, topic: str) -> bool:
        for text, prefix in self.compiled.topics:
            if topic.startswith(prefix):
                pattern = self._pattern(text)
                if pattern is not None and pattern.accepts(topic):
                    return True
        return False

    def filter_towards(self, wanted: Filter) -> Filter | None:
        """Return the rule's topics and condition as one filter, if it overlaps `wanted`."""
        if self.identity.is_plain and not self.compiled.reach.overlaps(wanted):
            return None
        if self._filter is None:
            self._filter = self._whole()
        return self._filter if self._filter.overlaps(wanted) else None

    def _whole(self) -> Filter:
        patterns = [self._pattern(text) for text, _ in self.compiled.topics]
        try:
            return _rule_filter([one for one in patterns if one is not None], self.compiled.where)
        # A client id of many thousand characters: what is denied cannot be expressed exactly.
        except InputError:
            return NONE if self.allows else ALL

    def _pattern(self, text: str) -> TopicPattern | None:
        if text not in self._patterns:
            self._patterns[text] = _filled(text, self.identity, self.allows)
        return self._patterns[text]


def _rule_filter(patterns: list[TopicPattern], where: Filter | None) -> Filter:
    topics = disjunction(topic_matches(TOPIC, pattern) for pattern in patterns)
    return Filter(conjunction([topics, where.expression]) if where else topics)


class Access:
    """Compiled rules. Invalid rules are refused."""

    __state__ = State(
        "mqtt-access", saved=("rules",), derived=("_by_client", "_compiled", "_connecting", "_known")
    )

    def __init__(self, rules: AccessRules = AccessRules()) -> None:  # noqa: B008
        self.rules = rules
        self._restore()

    def _restore(self) -> None:
        rules = self.rules.rules
        self._compiled = [_compile(number, rule) for number, rule in enumerate(rules)]
        self._by_client = any(_depends_on_client(rule) for rule in rules)
        self._connecting = [one for one in self._compiled if one.rule.action == "connect"]
        self._known: dict[tuple[str, str, str, Grants | None], ClientAccess] = {}

    def of(self, identity: Identity) -> ClientAccess:
        """Return the rules' meaning for this client; clients with the same result share it."""
        by_client = self._by_client or identity.grants is not None
        key = (identity.user, identity.certificate, identity.client if by_client else "", identity.grants)
        known = self._known.get(key)
        return known if known is not None else _remember(self._known, key, self._make(identity))

    def _make(self, identity: Identity) -> ClientAccess:
        rules = self._compiled
        verdicts = (one.rule.verdict == "allow" for one in self._connecting if one.fits(identity))
        may_connect = next(verdicts, not self._connecting)
        if identity.grants is None:
            return ClientAccess(rules, identity, self.rules.default == "allow", may_connect)
        # Granted topics need no rule that allows them, but a rule can deny them.
        return ClientAccess(rules, identity, True, may_connect, _granted(identity.grants, identity))


def _granted(grants: Grants, identity: Identity) -> ClientAccess:
    rules = []
    for action, topics in (("publish", grants.publish), ("subscribe", grants.subscribe)):
        if topics:
            rule = msgspec.convert({"verdict": "allow", "topic": topics, "action": action}, Rule)
            rules.append(_compile(0, rule))
    return ClientAccess(rules, identity, False)


def check_grants(grants: Grants) -> None:
    """Raise InputError if a topic filter of the grants is invalid."""
    _granted(grants, Identity("x", "x"))


def _texts(value: Texts) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _depends_on_client(rule: Rule) -> bool:
    return _texts(rule.client) != (EVERYONE,) or any("%c" in topic for topic in _texts(rule.topic))


def _compile(number: int, rule: Rule) -> _Compiled:
    """Check and compile a rule; error messages name it by its number."""
    try:
        for name, value in (("topic", rule.topic), ("user", rule.user), ("client", rule.client)):
            if not _texts(value) or "" in _texts(value):
                raise InputError(f"{name} is empty; leave it out to mean all")
        if rule.action == "connect" and (rule.topic != "#" or rule.where):
            raise InputError("a rule for connect has neither topic nor where, only user and client")
        where = parse(rule.where) if rule.where else None
        if where is not None and where.own:
            raise InputError(
                f"where = {rule.where}: rules cannot use the state of clients; leave out myloc and my"
            )
        for topic in _texts(rule.topic):
            TopicPattern(_substituted(topic, "x", "x"))
        reach = _rule_filter([TopicPattern(_widened(topic)) for topic in _texts(rule.topic)], where)
    except InputError as error:
        raise InputError(f"access.rule.{number}: {error}") from None
    return _Compiled(
        rule,
        tuple(_user_test(text) for text in _texts(rule.user)),
        tuple(_client_test(text) for text in _texts(rule.client)),
        tuple(_Topic(topic, _prefix(topic)) for topic in _texts(rule.topic)),
        where,
        reach,
    )


def _widened(topic: str) -> str:
    """Return a topic filter for every name: a level with a placeholder becomes a wildcard."""
    return re.sub("[^/]*%[uc][^/]*", "+", topic)


def _prefix(topic: str) -> str:
    fixed = re.split("[+#]|%[uc]", topic, maxsplit=1)[0]
    # a/# matches a too.
    return fixed.removesuffix("/") if topic.startswith(f"{fixed}#") else fixed


def _user_test(text: str) -> Callable[[Identity], bool]:
    if text == EVERYONE:
        return lambda identity: True
    if text == ANONYMOUS:
        return lambda identity: not identity.name
    if text.startswith(CERTIFICATE):
        fits = _glob(text.removeprefix(CERTIFICATE))
        return lambda identity: bool(identity.certificate and fits(identity.certificate))
    fits = _glob(text.removeprefix(USER))
    return lambda identity: bool(identity.user and fits(identity.user))


def _client_test(text: str) -> Callable[[Identity], object]:
    if "%u" not in text:
        fits = _glob(text)
        return lambda identity: fits(identity.client)
    return lambda identity: identity.name and _glob(text, identity.name)(identity.client)


def _glob(text: str, user: str = "%u") -> Callable[[str], object]:
    """Match a name, where * is a wildcard; atomic, so that no name can make it slow."""
    first, *parts = (re.escape(part).replace("%u", re.escape(user)) for part in text.split("*"))
    if not parts:
        return re.compile(first).fullmatch
    *middle, last = parts
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + f".*{last}", re.DOTALL).fullmatch


def _substituted(topic: str, user: str, client: str) -> str:
    # In one pass: a user named %c must not be substituted again.
    return re.sub("%[uc]", lambda found: user if found[0] == "%u" else client, topic)


def _filled(topic: str, identity: Identity, allows: bool) -> TopicPattern | None:
    """Return the topic filter for this client; None if no such topic exists, or the name is unsafe.

    A name with a slash could reach topics of other clients, and one that starts with $ topics of the broker,
    so such names allow nothing; but denials still apply.
    """
    names = [name for mark, name in (("%u", identity.name), ("%c", identity.client)) if mark in topic]
    if any("+" in name or "#" in name or "\0" in name for name in names):
        return None
    if allows and any("/" in name or not name or name.startswith("$") for name in names):
        return None
    try:
        return TopicPattern(_substituted(topic, identity.name, identity.client))
    except InputError:
        return None
