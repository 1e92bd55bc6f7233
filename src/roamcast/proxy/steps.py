"""Inputs and effects of a proxy's step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.buffers import Entry
from roamcast.proxy.messages import Message

Role = Literal["client", "proxy", "dialed", "endpoint"]


# --- what the MQTT endpoint says, in the same process: see residents.py ---


class Attach(msgspec.Struct, frozen=True):
    """A client of the endpoint has connected: find its session at any site, or create one."""

    request: int
    client: str
    user: str
    ticket: str
    """Ticket of a session that begins here."""
    is_clean: bool
    """True: end an existing session first."""
    lease_s: float


class Attached(msgspec.Struct, frozen=True):
    """Batches follow under this request, and are answered with Taken."""

    request: int
    is_present: bool
    filters: dict[str, str]
    passing: dict[int, tuple[str, bool]] = {}


class Subscribe(msgspec.Struct, frozen=True):
    """Filters with the endpoint's notes; answered with Done or MoveRefused."""

    request: int
    add: dict[str, str]
    remove: tuple[str, ...] = ()


class Recalled(msgspec.Struct, frozen=True):
    """Retained messages of the foreign broker, for the attached client."""

    messages: tuple[ForeignMessage, ...]


class Pass(msgspec.Struct, frozen=True):
    """The client publishes with QoS 2; recorded to recognise a repeated publish at any site."""

    packet_id: int
    identity: str
    is_passed: bool


class Done(msgspec.Struct, frozen=True):
    request: int


class Detach(msgspec.Struct, frozen=True):
    """The client has disconnected; a lease of 0 seconds ends its session."""

    lease_s: float


Local = Attach | Attached | Subscribe | Recalled | Pass | Done | Detach


# --- inputs ---


class Joined(msgspec.Struct, frozen=True):
    """A connection whose other end is authenticated: a user ("" for anonymous) or a site."""

    connection: int
    role: Role
    who: str


class Got(msgspec.Struct, frozen=True):
    connection: int
    message: Message | Local


class Left(msgspec.Struct, frozen=True):
    """A connection ended, or could not be dialed."""

    connection: int
    why: str = ""


class Received(msgspec.Struct, frozen=True):
    """The foreign broker delivered a message to a handler."""

    name: str
    message: ForeignMessage


class Listening(msgspec.Struct, frozen=True):
    """The foreign broker has all filters of a Listen."""

    name: str
    token: int = 0
    is_kept: bool = True
    """False if the foreign broker says that it kept nothing under this name (see Listen.is_resumed)."""


class Unlistened(msgspec.Struct, frozen=True):
    name: str
    is_end: bool = True


class ForeignFailed(msgspec.Struct, frozen=True):
    """A Listen or an Unlisten failed."""

    name: str
    what: Literal["listen", "unlisten"]
    why: str
    token: int = 0


class ForeignLost(msgspec.Struct, frozen=True):
    why: str


class ForeignBack(msgspec.Struct, frozen=True):
    """The foreign broker is connected, at the start or again; every handler must subscribe anew."""


Input = Joined | Got | Left | Received | Listening | Unlistened | ForeignFailed | ForeignLost | ForeignBack


# --- effects ---


class Keep(msgspec.Struct, frozen=True):
    """Journal this entry before any other effect of the step is performed."""

    entry: Entry


class Send(msgspec.Struct, frozen=True):
    connection: int
    message: Message | Local


class Close(msgspec.Struct, frozen=True):
    connection: int


class Dial(msgspec.Struct, frozen=True):
    """Connect to the proxy of a site; Joined or Left follows."""

    connection: int
    site: str


class Listen(msgspec.Struct, frozen=True):
    """Subscribe the handler's filters in this order; Listening or ForeignFailed follows. Operations of one
    name are sequential."""

    name: str
    filters: tuple[str, ...]
    token: int = 0
    """Returned with the answer."""
    is_resumed: bool = False
    """True if the foreign broker may have kept messages under this name."""


class Unlisten(msgspec.Struct, frozen=True):
    name: str
    filters: tuple[str, ...]
    is_end: bool = True
    """True if the handler ends all its subscriptions."""


class PublishStep(msgspec.Struct, frozen=True):
    message: ForeignMessage


Effect = Keep | Send | Close | Dial | Listen | Unlisten | PublishStep
TopicOf = Callable[[Sequence[str]], str]
