"""Links to peers: their messages become inputs of the site, and the site's output for them is written."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from roamcast.broker.contract import AnyMachine
from roamcast.broker.history import Seen
from roamcast.broker.inputs import (
    HistoryAccepted,
    LinkDown,
    LinkFrames,
    LinkRefused,
    LinkUp,
    MachineInput,
)
from roamcast.broker.links.guard import REASONS
from roamcast.broker.links.links import Offer
from roamcast.config.sections import Config, Link
from roamcast.errors import InputError
from roamcast.net.discovery import LocalDiscovery
from roamcast.net.peers import Peers
from roamcast.net.tls import link_contexts
from roamcast.storage.kept_out import KeptOut

log = logging.getLogger("roamcast")

INCARNATION_BITS = 62
REPORT_PAUSE_S = 10.0
REPORT_PAUSE_MAX_S = 3600.0
Answer = TypeVar("Answer")


class Told(NamedTuple):
    """Record of the log lines about refused messages of one kind."""

    refused: int = 0
    again_at_s: float = 0.0
    pause_s: float = REPORT_PAUSE_S


class Linking:
    """Implements `peers.LinkHandler`."""

    def __init__(
        self,
        config: Config,
        site: AnyMachine,
        push: Callable[[MachineInput], None],
        kept_out: KeptOut,
        fail: Callable[[Exception], NoReturn],
        within: Path | None = None,
    ) -> None:
        """`fail` ends the process because the site raised; `within` is the socket where other workers
        connect."""
        terms = {
            "network": config.network,
            "mobility protocol": config.mobility.protocol,
            "routing strategy": site.strategy,
        }
        if site.links_may_cycle:
            # With a shorter timeout than the others, this broker would take each leader for lost.
            election = config.election
            terms["election"] = f"{election.missed_max} rounds of {election.period_s:g} s"
        contexts = link_contexts(config.link) if config.link.tls else None
        self.peers = Peers(
            config.id, terms, _link_of(config), config.peers, self, contexts,
            detours=config.detours, relay=config.relay, within=within,
        )  # fmt: skip
        self._config = config
        self.discovery: LocalDiscovery | None = None
        self._site = site
        self._push = push
        self._kept_out = kept_out
        self._told: dict[tuple[str, str], Told] = {}
        """Log lines about refusals, by peer and reason."""
        self.refused: dict[str, tuple[Offer, str]] = {}
        """Peers whose history was refused: their last position, and the reason."""
        self.has_met = asyncio.Event()
        """Set once a peer has connected since this process began."""
        self._fail = fail
        self.may_write: Callable[[], bool] = lambda: True
        """False while the site may be ahead of its journal: nothing may be sent to peers then."""

    async def start(self) -> None:
        await self.peers.start()
        if self._config.discovery.enabled:
            self.discovery = LocalDiscovery(self._config, self.peers.port, self.peers)
            await self.discovery.start()

    async def stop(self) -> None:
        if self.discovery is not None:
            await self.discovery.stop()
        await self.peers.stop()

    def reload(self, config: Config) -> None:
        contexts = link_contexts(config.link) if config.link.tls else None
        self.peers.reload(_link_of(config), config.peers, contexts, config.detours, config.relay)
        if self.discovery is not None:
            self.discovery.secret = config.link.secret

    def report_refusals(self, now_s: float) -> None:
        """Log refused messages of peers: at once, and again after growing pauses while refusals continue."""
        for peer in self._site.links.ends:
            for reason, count in self._site.refused(peer).items():
                told = self._told.get((peer, reason), Told())
                if count == told.refused or now_s < told.again_at_s:
                    continue
                log.warning(
                    "refused %d messages from %s: %s", count - told.refused, peer, REASONS.get(reason, reason)
                )
                pause_s = min(2 * told.pause_s, REPORT_PAUSE_MAX_S)
                self._told[peer, reason] = Told(count, now_s + told.pause_s, pause_s)

    def write(self, peer: str) -> None:
        """Write pending output for the peer, as much as its connection accepts."""
        end = self._site.links.ends.get(peer) if self.may_write() else None
        while end is not None and end.has_more and self.peers.is_writable(peer):
            self.peers.write(peer, self._ask(end.take))

    def _ask(self, question: Callable[..., Answer], *about: Any) -> Answer:
        """Ask the site outside a turn; an exception stops the process as it does in a turn."""
        try:
            return question(*about)
        except Exception as error:
            self._fail(error)

    # --- called by the connections ---

    def offer(self, peer: str) -> Offer:
        return self._ask(self._site.offer, peer)

    def doubt(self, peer: str, offer: Offer) -> str:
        why = self._ask(self._site.doubt, peer, offer)
        if why:
            self.refused[peer] = offer, why
        return why

    def runs_twice(self, peer: str) -> str:
        return self._site.doubt(peer, Offer(), is_linked=True)

    def refusal(self, peer: str, offer: Offer) -> str:
        if not self.may_write():
            return f"broker {self._site.id} cannot write its journal now"
        return self._kept_out.refusal("peer", peer) or self._ask(self._site.refusal, peer, offer)

    def on_refused(self, peer: str, why: str, is_fence: bool) -> None:
        # No message from a guest may stop this broker.
        is_fence = is_fence and not self.peers.is_guest(peer)
        if is_fence and peer not in self._site.history.fences:
            log.error("clients are refused and links are closed: %s refuses this broker: %s", peer, why)
        self._push(LinkRefused(peer, why, is_fence))

    def on_link_up(self, peer: str, offer: Offer, version: int) -> None:
        is_new = self._ask(self._site.begins_anew, peer, offer)
        incarnation = secrets.randbits(INCARNATION_BITS) + 1 if is_new else 0
        if peer in self._site.history.fences:
            log.warning("%s accepts the history of this broker: clients are served again", peer)
        self.refused.pop(peer, None)
        self._push(LinkUp(peer, offer, incarnation, version))
        self.has_met.set()

    def accept(self, broker: str) -> HistoryAccepted:
        """Return the input for an operator's decision about a history; raise InputError if there is nothing
        to decide."""
        history = self._site.history
        if broker == self._site.id:
            if not history.refusal and not self._site.unmet():
                raise InputError(f"nobody refuses the history of {broker}, and all its peers were met")
            return HistoryAccepted(broker)
        if broker not in self.refused:
            names = ", ".join(self.refused) or "none"
            raise InputError(f"the history of {broker} is not refused here; refused are: {names}")
        offer, _ = self.refused.pop(broker)
        return HistoryAccepted(broker, Seen.of(offer.history), bool(self._site.links.refusal(broker, offer)))

    def on_frames(self, peer: str, frames: bytes) -> None:
        self._push(LinkFrames(peer, frames))

    def on_link_down(self, peer: str) -> None:
        self._push(LinkDown(peer))

    def taken(self, peer: str) -> int:
        end = self._site.links.ends.get(peer)
        return end.taken if end is not None else 0

    def on_writable(self, peer: str) -> None:
        self.write(peer)

    def heartbeat(self, peer: str) -> bytes:
        end = self._site.links.ends.get(peer)
        position = self._site.history.told_position if self.may_write() else 0
        return self._ask(end.heartbeat, position) if end is not None else b""


def _link_of(config: Config) -> Link:
    """Return the configuration of the link. Brokers that discover each other are not listed."""
    if config.discovery.enabled and config.link.unlisted == "auto":
        return msgspec.structs.replace(config.link, unlisted="accept")
    return config.link
