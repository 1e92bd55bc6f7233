"""Who a client is: by certificate, by password, or nobody, and whether nobody may come in.

The order is fixed. A user name that is given must be proved, also where no name is needed: whoever
mistypes a password must not come in as someone else. A certificate was proved by TLS before a byte of
MQTT came. Only who brings neither is anonymous.
"""

from __future__ import annotations

from roamcast.config.sections import Config, Listener
from roamcast.mqtt.codec.packets import Connect
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.server.access import Identity
from roamcast.net.clients import ConnectionRefused
from roamcast.net.passwords import Outcome, Verifier
from roamcast.net.tls import PeerCertificate, certificate_name
from roamcast.net.users import read_users

REASONS = {
    Outcome.REFUSED: Reason.BAD_USER_NAME_OR_PASSWORD,
    Outcome.WAIT: Reason.CONNECTION_RATE_EXCEEDED,
    Outcome.BUSY: Reason.SERVER_BUSY,
}


class Admission:
    """Decides who comes in; one for a broker."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._verifier = Verifier(users_of(config), config.access)

    def reconfigure(self, config: Config) -> None:
        """Other users and settings from now on; InputError if they cannot be read, and nothing changes."""
        self._verifier.reconfigure(users_of(config), config.access)
        self._config = config

    def close(self) -> None:
        self._verifier.close()

    async def identify(
        self,
        listener: Listener,
        connect: Connect,
        client: str,
        address: str,
        certificate: PeerCertificate | None = None,
    ) -> Identity:
        """Who it is that sent the CONNECT, under this client id, from this address; or `ConnectionRefused`.

        The certificate is what `getpeercert()` of its connection gives, if that is encrypted.
        """
        if connect.authentication_method is not None:
            raise ConnectionRefused(
                Reason.BAD_AUTHENTICATION_METHOD,
                f"authentication method {connect.authentication_method!r} is not known here",
            )
        name = certificate_name(certificate, listener.certificate_name)
        user = ""
        if self._config.access.users and (connect.username is not None or connect.password is not None):
            user = connect.username or ""
            outcome = await self._verifier.verify(user, connect.password or b"", address)
            if outcome is not Outcome.ACCEPTED:
                raise ConnectionRefused(REASONS[outcome], outcome.value)
        if not (user or name or self._config.allows_anonymous(listener)):
            raise ConnectionRefused(Reason.NOT_AUTHORIZED, "this listener wants a user name or a certificate")
        return Identity(client, user, name)


def users_of(config: Config) -> dict[str, str]:
    return read_users(config.access.users) if config.access.users else {}
