"""The brokers that may be linked with this one, and how each of them authenticates."""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.config.loading import check_secret
from roamcast.config.private_files import read_secret
from roamcast.config.sections import Link, Peer


def read_secrets(files: Iterable[str], key: str) -> tuple[str, ...]:
    """Read the secrets in these files, in order; `key` names the table in error lines."""
    secrets = []
    for number, path in enumerate(files):
        place = f"{key}.secret_files.{number}"
        secrets.append(read_secret(path, place))
        check_secret(place, secrets[-1])
    return tuple(secrets)


class PeerList:
    """The configured peers. Raises InputError if one of their files cannot be read."""

    def __init__(self, link: Link, peers: Iterable[Peer]) -> None:
        self._peers = {peer.id: peer for peer in peers}
        own = (link.secret,) if link.secret else ()
        self._default = own
        self._secrets = {
            peer.id: read_secrets(peer.secret_files, f"peer.{number}") or own
            for number, peer in enumerate(self._peers.values())
        }
        self._accepts_unlisted = link.accepts_unlisted

    @property
    def listed(self) -> list[str]:
        return list(self._peers)

    def admits(self, id: str) -> bool:
        return id in self._peers or self._accepts_unlisted

    def secrets(self, id: str) -> tuple[str, ...]:
        """Return the valid secrets of a peer; none if no secret is needed."""
        return self._secrets.get(id, self._default)

    def entry(self, id: str) -> Peer:
        """Return the configuration of a peer, or the defaults for one that is not listed."""
        return self._peers.get(id) or Peer(id=id)

    @property
    def has_secrets(self) -> bool:
        """Return whether a listed peer authenticates with a secret."""
        return bool(self._default) or any(self._secrets.values())
