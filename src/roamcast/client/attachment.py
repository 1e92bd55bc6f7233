"""Keeps a client attached: opens connections, feeds its machine, and reconnects when one is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from roamcast.client.addresses import Address, AddressBook
from roamcast.client.errors import FINAL, ClientClosed, ClientError, ConnectError, in_words
from roamcast.client.records import ClientLog
from roamcast.client.wire import Wire, open_wire
from roamcast.errors import InputError
from roamcast.mqtt.client.client import Accepted, ClientSession, ConnectRefused, Ended, Event, Steered
from roamcast.mqtt.client.outgoing import Acknowledged
from roamcast.mqtt.client.requests import OF_ITS_OWN, Granted
from roamcast.mqtt.codec.packets import Connack
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import NETWORK
from roamcast.mqtt.scram import NONCE_BYTES
from roamcast.mqtt.server.steering import read_next

if TYPE_CHECKING:
    from roamcast.client.tracing import Trace

log = logging.getLogger("roamcast.client")
ATTACHED = "attached to %s, session present: %s"

SHORT_S = 1.0
"""Seconds that a connection must last, or it counts as a failed attempt."""
BACK_OFF_FIRST_S = 0.1
OWN_DOING_S = 30.0
"""Seconds after giving up an attach within which the broker may still accept it, and so end our session."""
RELEASE_S_MAX = 1.0
"""Seconds that a closing client waits for PUBREL of received QoS 2 messages."""
PUBLISHES_PER_TURN = 256
BYTES_PER_TURN = 1 << 18
MANY_IN_FLIGHT, FEW_BYTES, REST_S = 256, 1024, 0.002
"""If this many answers are pending and only a few bytes have arrived, wait this long for more, because
Mosquitto writes each answer separately. Nothing else may be delayed: a broker that does not disable
Nagle's algorithm sends little until it hears from us again."""


class Policy(msgspec.Struct, frozen=True):
    connect_timeout_s: float
    reconnect: bool
    give_up_after_s: float | None
    back_off_max_s: float
    queue_max: int
    bind: str | None = None
    """Local address to connect from."""


class Waiter(Protocol):
    """Waits for the answer to a publish or a request."""

    def settle(self, event: Acknowledged | Granted) -> bool:
        """Take an answer; True if it was the last."""
        ...

    def fail(self, error: ClientError) -> None: ...


class Attachment:
    def __init__(
        self,
        session: ClientSession,
        book: AddressBook,
        policy: Policy,
        context: ssl.SSLContext | None,
        records: ClientLog | None,
        arrived: Callable[[], None],
    ) -> None:
        self.session = session
        self.book = book
        self.waiters: dict[int, Waiter] = {}
        """Waiters by token."""
        self.failure: ClientError | None = None
        """The error that ended this client for good."""
        self.connack = Connack()
        self.dropped = 0
        self._policy, self._context, self._records, self._arrived = policy, context, records, arrived
        self._wire: Wire | None = None
        self._trace: Trace | None = None
        self._old_wires: dict[Wire, None] = {}
        """Old connections that still have output to write."""
        self._connecting = book.current
        self._answer: asyncio.Future[Connack] | None = None
        """The expected CONNACK."""
        self._attaching = asyncio.Lock()
        self._down = asyncio.Event()
        self._attached_at = 0.0
        self._gave_up_at: float | None = None
        """Time of the last attach that failed."""
        self._failed_rounds = 0
        self._writable = asyncio.Event()
        self._is_flushing = False
        self._unflushed = self._unflushed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        """Task that moves the client to the broker it was steered to."""
        self._released: asyncio.Event | None = None
        """While closing: set when the broker may have sent PUBREL."""

    # --- life ---

    async def start(self) -> None:
        """Attach to the first broker that accepts, or to its referral; raise the last error if none does."""
        for address in self.book.addresses:
            try:
                await self._attach_or_follow(address)
                break
            except ConnectError as error:
                if error.is_final or address is self.book.addresses[-1]:
                    self.failure = error
                    raise
        self._keeper = asyncio.get_running_loop().create_task(self._keep_attached())

    async def _attach_or_follow(self, address: Address) -> None:
        """Attach, or follow one referral of the broker; not a second one, because two brokers could refer
        to each other."""
        try:
            await self._attach(address)
        except ConnectError as error:
            if not self.book.refer(error.reference):
                raise
            await self._attach(self.book.go_on())

    async def close(self, session_expiry_s: int | None) -> None:
        for task in (self._following, self._keeper):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self._finish_taken()
        self.session.leave(session_expiry_s=session_expiry_s)
        self.fail(ClientClosed("the client is closed"))
        await asyncio.gather(*(wire.finished() for wire in self._old_wires))

    async def _finish_taken(self) -> None:
        """Wait for PUBREL of received QoS 2 messages, or the broker keeps them for the next attach."""
        self.flush()
        incoming = self.session.incoming
        if not incoming.unreleased or self.session.settings.clean:
            return
        self._released = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S_MAX):
                while incoming.unreleased and self._wire is not None:
                    self.listen()
                    self._released.clear()
                    await self._released.wait()

    def fail(self, error: ClientError) -> None:
        """End this client for good, with an error for all waiters."""
        failure = self.failure = self.failure or error
        self._hang_up()
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters.values():
            waiter.fail(failure)
        self._writable.set()
        self._arrived()

    async def move(self, address: Address, destination: str, *, prepares: bool = False) -> None:
        """Leave the present broker, telling it the destination if given, and attach to another one.

        With `prepares` the connection to the other one is made first. If there is none, the client stays.
        """
        async with self._attaching:
            if self.failure is not None:
                raise self.failure
            wire = await self._prepare(address) if prepares else None
            self.session.leave(destination)
            self._hang_up()
            self.book.current = address
            try:
                await self._attach(address, wire)
            except BaseException:
                # ConnectRefused or cancelled: treated as a lost connection from here on.
                self._down.set()
                raise

    async def _prepare(self, address: Address) -> Wire:
        try:
            async with asyncio.timeout(self._policy.connect_timeout_s):
                return await open_wire(address, self, self._context, self._policy.bind)
        except TimeoutError:
            raise ConnectError(f"{address}: no answer") from None

    # --- connections ---

    async def _attach(self, address: Address, wire: Wire | None = None) -> None:
        """Send CONNECT, over `wire` if it is open already, and wait for the answer."""
        loop = asyncio.get_running_loop()
        self._answer = answer = loop.create_future()
        timeout_s = self._policy.connect_timeout_s
        self._note_broker(address)
        has_asked = False
        try:
            async with asyncio.timeout(timeout_s):
                self._trace = self._new_trace()
                self._wire = wire or await open_wire(address, self, self._context, self._policy.bind)
                has_asked = True
                self.session.begin(loop.time(), secrets.token_bytes(NONCE_BYTES))
                self.flush()
                self.connack = await answer
            if self._wire is None:
                raise ConnectError(f"{address}: the connection was lost at once")
        except TimeoutError:
            raise ConnectError(f"{address}: no answer within {timeout_s:g} s") from None
        finally:
            self._answer = None
            if not self.session.is_connected:
                self._gave_up_at = loop.time() if has_asked else self._gave_up_at
                self._hang_up()
        self.book.current, self._attached_at = address, loop.time()
        self._down.clear()
        self._writable.set()
        if self._records is not None:
            self._records.attached(dict(self.connack.user_properties).get(NETWORK))
        self._arm()
        log.info(ATTACHED, address, self.connack.session_present)

    def _hang_up(self) -> None:
        """Write remaining output and close the connection."""
        self.flush()
        wire, self._wire = self._wire, None
        if wire is not None:
            self._old_wires[wire] = None
            wire.finish()
        self.session.cut()
        self.session.is_listening = True
        self._writable.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _keep_attached(self) -> None:
        try:
            while True:
                await self._down.wait()
                await self._attach_again()
        except ConnectError as error:
            self.fail(error)
        except Exception as error:
            # Otherwise waiting callers would wait forever.
            self.fail(ClientError(f"internal error: {type(error).__name__}: {error}"))
            raise

    async def _attach_again(self) -> None:
        """Try one address after the other, with growing pauses, until a broker accepts or time is up."""
        loop, policy = asyncio.get_running_loop(), self._policy
        began, attempts = loop.time(), 0
        if began - self._attached_at > SHORT_S:
            self._failed_rounds = 0
        self.book.go_on()
        while self._down.is_set():
            if attempts % len(self.book.addresses) == 0:
                await asyncio.sleep(self._back_off_s())
                self._failed_rounds += 1
            async with self._attaching:
                if not self._down.is_set():
                    return
                try:
                    await self._attach(self.book.current)
                except ConnectError as error:
                    log.info("%s", error)
                    self.book.refer(error.reference)
                    limit_s = policy.give_up_after_s
                    if error.is_final or (limit_s is not None and loop.time() - began > limit_s):
                        raise
            if self._down.is_set():
                self.book.go_on()
            attempts += 1

    def _back_off_s(self) -> float:
        """Pause before the next attempt: random, so that clients do not return all at once."""
        if not self._failed_rounds:
            return random.uniform(0.0, BACK_OFF_FIRST_S / 2)
        longest_s: float = BACK_OFF_FIRST_S * 2.0 ** min(self._failed_rounds, 20)
        return min(longest_s, self._policy.back_off_max_s) * random.uniform(0.5, 1.0)

    def _on_end(self, why: str, is_final: bool = False) -> None:
        """Handle the end of the connection."""
        error = ConnectError(f"{self._connecting}: {why}", is_final=is_final)
        self._hang_up()
        if self._answer is not None:
            if not self._answer.done():
                self._answer.set_exception(error)
        elif is_final or not self._policy.reconnect:
            self.fail(error)
        else:
            log.info("%s", error)
            self._down.set()

    # --- what a wire tells ---

    def on_data(self, wire: Wire, data: bytes) -> None:
        if wire is not self._wire:
            return
        if self._trace is not None:
            self._trace.received(data)
        self.perform(self.session.receive(asyncio.get_running_loop().time(), data))
        if len(self.session.incoming):
            self._arrived()
            self._limit()
        self.flush()
        if self._released is not None:
            self._released.set()
        if len(data) < FEW_BYTES and self.session.outgoing.in_flight > MANY_IN_FLIGHT:
            wire.rest(REST_S)

    def on_lost(self, wire: Wire, why: str) -> None:
        self._old_wires.pop(wire, None)
        if wire is self._wire:
            self._wire = None
            if self._released is not None:
                self._released.set()
            self._on_end(f"the connection was lost ({why})")

    def on_writable(self, wire: Wire) -> None:
        if wire is self._wire:
            self._writable.set()

    def _limit(self) -> None:
        """Pause reading while too many notifications wait, unless an awaited answer may follow them."""
        incoming, limit = self.session.incoming, self._policy.queue_max
        if len(incoming) < limit or self._wire is None:
            return
        if not self.waiters:
            self._wire.listen(False)
            self.session.listen(asyncio.get_running_loop().time(), False)
            return
        while len(incoming) > limit and incoming.drop_newest():
            self.dropped += 1

    def listen(self) -> None:
        """Resume reading."""
        if not self.session.is_listening and self._wire is not None:
            self.session.listen(asyncio.get_running_loop().time(), True)
            self._wire.listen(True)

    # --- what the machine says ---

    def perform(self, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) is Acknowledged or type(event) is Granted:
                waiter = self.waiters.get(event.token)
                if waiter is not None:
                    if waiter.settle(event):
                        del self.waiters[event.token]
                elif type(event) is Granted and event.token == OF_ITS_OWN:
                    self._on_restored(event)
            elif type(event) is Accepted:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(event.connack)
            elif type(event) is ConnectRefused:
                self._on_refused(event)
            elif type(event) is Ended:
                self.book.refer(event.reference)
                self._on_end(in_words(event.reason, event.text), self._is_taken_by_another(event))
            elif type(event) is Steered:
                self._on_steered(event.payload)

    def _is_taken_by_another(self, event: Ended) -> bool:
        """True if another client took over the session: reconnecting would only take it back."""
        if event.reason is not Reason.SESSION_TAKEN_OVER:
            return False
        gave_up_at, now = self._gave_up_at, asyncio.get_running_loop().time()
        return gave_up_at is None or now - gave_up_at > OWN_DOING_S

    def _on_refused(self, event: ConnectRefused) -> None:
        if self._answer is not None and not self._answer.done():
            text = f"{self._connecting}: refused: {in_words(event.reason, event.text)}"
            is_final = event.reason in FINAL
            error = ConnectError(text, event.reason, is_final=is_final, reference=event.reference)
            self._answer.set_exception(error)

    def _on_restored(self, event: Granted) -> None:
        """A subscription was made again because the session was gone; nobody else hears of a refusal."""
        for name, reason in zip(event.filters, event.reasons, strict=False):
            if reason.failed:
                log.warning("resubscribing to %s failed: %s", name, in_words(reason))

    def _on_steered(self, payload: bytes) -> None:
        """Move to the broker that steering names, unless the client is already moving."""
        hint = read_next(payload)
        if hint is None or (self._following is not None and not self._following.done()):
            return
        try:
            address = self.book.known(hint.broker) or self.book.find(f"{hint.broker}={hint.address}")
        except InputError:
            return
        if self.book.current.is_tls and not address.is_tls:
            log.warning("ignoring the broker's steering to %s: that address has no TLS", address)
            return
        self._following = asyncio.get_running_loop().create_task(self._follow(address))

    async def _follow(self, address: Address) -> None:
        try:
            await self.move(address, address.broker, prepares=True)
        except ClientError as error:
            log.info("steered to %s: %s", address.broker, error)

    # --- writing ---

    def flush(self) -> None:
        """Write the machine's output."""
        self._unflushed = self._unflushed_bytes = 0
        wire = self._wire
        data = self.session.take_out(asyncio.get_running_loop().time())
        if data and wire is not None:
            if self._trace is not None:
                self._trace.sent(data)
            wire.write(data)
            if wire.is_full:
                self._writable.clear()

    def flush_soon(self) -> None:
        """Write at the end of this turn of the loop, together with whatever else comes up in it."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    async def pace(self, payloads: Sequence[bytes]) -> None:
        """Let other tasks run from time to time, and wait while the connection accepts no more."""
        self._unflushed += len(payloads)
        self._unflushed_bytes += sum(map(len, payloads))
        if self._unflushed < PUBLISHES_PER_TURN and self._unflushed_bytes < BYTES_PER_TURN:
            self.flush_soon()
            return
        self.flush()
        await asyncio.sleep(0)
        if self._wire is not None and self._wire.is_full:
            await self._writable.wait()

    def _new_trace(self) -> Trace | None:
        """A logger of packets, if level DEBUG is enabled when the connection begins."""
        if not log.isEnabledFor(logging.DEBUG):
            return None
        from roamcast.client.tracing import Trace

        return Trace(log, self.session.version)

    # --- time and records ---

    def _arm(self) -> None:
        """Set the timer. Deadlines only move later meanwhile, so one timer is enough."""
        deadline = self.session.deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.perform(self.session.on_time(asyncio.get_running_loop().time()))
        self.flush()
        if self._wire is not None:
            self._arm()

    def _note_broker(self, address: Address) -> None:
        self._connecting = address
        if self._records is not None:
            left = self._records.broker
            self._records.broker = address.broker or str(address)
            self._records.write("moved", reason=left)
