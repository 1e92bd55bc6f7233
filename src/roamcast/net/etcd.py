"""Leadership in etcd: the few requests that a replica makes, over etcd's JSON gateway.

A site has two keys. `site` holds what must survive every process: the in-sync set and the epoch. `leader` is
bound to the lease of the leading process, and disappears with it. Every request that changes something is one
transaction that compares the revision of `site`, and who leads.

Requests are made in threads, each over a connection of its own: one that hangs delays no other.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

import msgspec

from roamcast.config.sections import Replication
from roamcast.errors import InputError
from roamcast.replication.messages import SiteView

GATEWAY = "/v3"


class EtcdFailed(Exception):
    """Raised if etcd gives no answer or a useless one; the text is one line."""


class Leader(msgspec.Struct, frozen=True):
    """The value of the key `leader`."""

    leader: str
    boot: str
    address: str
    reference: str


class Etcd:
    """The requests of one replica of one site. Every method blocks."""

    def __init__(self, settings: Replication, network: str, site: str, timeout_s: float) -> None:
        self._members = [urlsplit(url) for url in settings.etcd]
        self._settings = settings
        self._timeout_s = timeout_s
        self._site_key = _text(f"roamcast/{network}/{site}/site")
        self._leader_key = _text(f"roamcast/{network}/{site}/leader")
        self._lease = 0
        self._own = ""
        """The value of `leader` while this process leads."""
        self._token = ""
        self._context = _context(settings)

    # --- requests ---

    def look(self) -> SiteView:
        answer = self._post("/kv/txn", {"success": self._ranges()})
        return _view(answer["responses"])

    def campaign(self, wanted: SiteView, revision: int) -> tuple[SiteView, bool]:
        granted = self._post("/lease/grant", {"TTL": str(self._settings.lease_s)})
        lease = int(granted["ID"])
        own = _value(Leader(wanted.leader, wanted.boot, wanted.address, wanted.reference))
        # Before the answer arrives, since it may be lost.
        self._lease, self._own = lease, own
        answer = self._post(
            "/kv/txn",
            {
                "compare": [
                    {"key": self._leader_key, "target": "CREATE", "create_revision": "0"},
                    {"key": self._site_key, "target": "MOD", "mod_revision": str(revision)},
                ],
                "success": [
                    self._put_site(wanted),
                    {"requestPut": {"key": self._leader_key, "value": own, "lease": str(lease)}},
                    *self._ranges(),
                ],
                "failure": self._ranges(),
            },
        )
        is_won = bool(answer.get("succeeded"))
        if not is_won:
            self.resign()
        return _view(answer["responses"][-2:]), is_won

    def renew(self) -> bool:
        """Renew the lease; return False if it has ended."""
        answer = self._post("/lease/keepalive", {"ID": str(self._lease)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def change(self, wanted: SiteView, revision: int) -> tuple[SiteView, bool]:
        answer = self._post(
            "/kv/txn",
            {
                "compare": [
                    {"key": self._leader_key, "target": "VALUE", "value": self._own},
                    {"key": self._site_key, "target": "MOD", "mod_revision": str(revision)},
                ],
                "success": [self._put_site(wanted), *self._ranges()],
                "failure": self._ranges(),
            },
        )
        return _view(answer["responses"][-2:]), bool(answer.get("succeeded"))

    def resign(self) -> bool:
        if self._lease:
            self._post("/lease/revoke", {"ID": str(self._lease)})
        return True

    def _ranges(self) -> list[dict[str, Any]]:
        return [{"requestRange": {"key": key}} for key in (self._site_key, self._leader_key)]

    def _put_site(self, view: SiteView) -> dict[str, Any]:
        kept = msgspec.structs.replace(view, revision=0, leader="", boot="", address="", reference="")
        return {"requestPut": {"key": self._site_key, "value": _value(kept)}}

    # --- HTTP ---

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the first member that gives one."""
        why = "no member of etcd is named"
        for member in list(self._members):
            try:
                return self._post_to(member, path, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = f"etcd at {member.netloc}: {error or type(error).__name__}"
                # The next request starts with another member.
                self._members = [*(one for one in self._members if one is not member), member]
        raise EtcdFailed(" ".join(why.split()))

    def _post_to(self, member: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._settings.etcd_user and not self._token:
            user = {"name": self._settings.etcd_user, "password": self._settings.etcd_password}
            status, answer = self._exchange(member, "/auth/authenticate", user)
            if status != 200:
                raise ValueError(f"{answer.get('message') or answer.get('error')}")
            self._token = str(answer.get("token", ""))
        status, answer = self._exchange(member, path, body)
        if status == 401 or "auth token" in str(answer.get("error", "")):
            self._token = ""
        if status != 200:
            error = str(answer.get("message") or answer.get("error") or f"status {status}")
            if "lease not found" in error:
                return {}
            raise ValueError(error)
        return answer

    def _exchange(self, member: Any, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        connection: http.client.HTTPConnection
        if member.scheme == "https":
            connection = http.client.HTTPSConnection(
                member.hostname, member.port or 2379, timeout=self._timeout_s, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(
                member.hostname, member.port or 2379, timeout=self._timeout_s
            )
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        try:
            connection.request("POST", GATEWAY + path, json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read() or b"{}")
        finally:
            connection.close()
        return response.status, answer if isinstance(answer, dict) else {}


def _context(settings: Replication) -> ssl.SSLContext | None:
    if not any(url.startswith("https://") for url in settings.etcd):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.etcd_ca or None)
        if settings.etcd_certificate:
            context.load_cert_chain(settings.etcd_certificate, settings.etcd_key or None)
    except OSError as error:
        raise InputError(f"replication.etcd_ca, etcd_certificate or etcd_key: {error}") from None
    return context


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _value(struct: msgspec.Struct) -> str:
    return base64.b64encode(msgspec.json.encode(struct)).decode()


def _view(responses: list[dict[str, Any]]) -> SiteView:
    """Read the results of the two ranges at the end of a transaction."""
    site, leader = (one.get("response_range", {}).get("kvs", []) for one in responses)
    view = SiteView()
    if site:
        view = msgspec.json.decode(base64.b64decode(site[0]["value"]), type=SiteView)
        view = msgspec.structs.replace(view, revision=int(site[0]["mod_revision"]))
    if leader:
        named = msgspec.json.decode(base64.b64decode(leader[0]["value"]), type=Leader)
        view = msgspec.structs.replace(view, **msgspec.structs.asdict(named))
    return view
