"""Addresses at which peers can be dialed: configured and discovered ones."""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.config.sections import Peer


class AddressBook:
    def __init__(self, peers: Iterable[Peer]) -> None:
        self._configured = _addresses(peers)
        self._found: dict[str, str] = {}
        """Last discovered address of each peer."""

    def configure(self, peers: Iterable[Peer]) -> list[str]:
        """Set the configured peers; return those with a changed address."""
        before, self._configured = self._configured, _addresses(peers)
        return [peer for peer, address in self._configured.items() if before.get(peer, address) != address]

    def find(self, peer: str, address: str) -> bool:
        """Note a discovered address; True if it changed."""
        before = self.addresses(peer)
        self._found[peer] = address
        return bool(before) and before[0] != address

    def lose(self, peer: str) -> None:
        """Forget the discovered address of a silent peer."""
        self._found.pop(peer, None)

    def addresses(self, peer: str) -> list[str]:
        """Return addresses to try, the likeliest first; none for an unknown peer."""
        found = self._found.get(peer)
        known = (*([found] if found is not None else []), *self._configured.get(peer, ()))
        return list(dict.fromkeys(known))

    @property
    def peers(self) -> list[str]:
        return sorted({**self._configured, **self._found})

    def __contains__(self, peer: str) -> bool:
        return peer in self._configured or peer in self._found


def _addresses(peers: Iterable[Peer]) -> dict[str, tuple[str, ...]]:
    """Configured addresses of the peers that this broker dials; other peers connect by themselves."""
    all_of = {peer.id: (*([peer.address] if peer.address else []), *peer.addresses) for peer in peers}
    return {peer: addresses for peer, addresses in all_of.items() if addresses}
