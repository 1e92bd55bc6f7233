"""Settings of access that cannot work, or would not be safe, are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.net.certificates import Authority

from roamcast.config.sections import Access, Config, Listener
from roamcast.daemon.config import load
from roamcast.errors import InputError

TLS = 'kind = "tls"\ncertificate = "site.pem"\nkey = "site.key"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[access]\nrealm_brokers = ["b"]\n', "access.realm_brokers: name the realm"),
        ('[access]\nrealm = "a/b"\n', "access.realm"),
        ('[access.http]\nurl = "http://login.example.org/"\n', "passwords would travel unencrypted"),
        ('[access.http]\nurl = "ftp://127.0.0.1/"\n', "valid is https://HOST/PATH"),
        ('[access.http]\nurl = "https://login.example.org/"\nca = "missing"\n', "access.http.ca = .*missing"),
        ('[access.jwt]\nkeys = "missing"\n', "access.jwt.keys = .*missing: cannot be read"),
        ('[access.jwt]\nkeys = "site.key"\n', "holds no public keys"),
        ('[access.jwt]\nkeys = "site.pem"\nalgorithms = ["HS256"]\n', "access.jwt.algorithms"),
        ("[[listener]]\nproxy_protocol = true\n", "proxy_protocol and trusted_proxies belong together"),
        ('[[listener]]\ntrusted_proxies = ["10.0.0.1"]\n', "and trusted_proxies belong together"),
        (
            '[[listener]]\nproxy_protocol = true\ntrusted_proxies = ["x"]\nanonymous = true\n',
            "'x' is no address or network",
        ),
        ('[[listener]]\ncrl = "revoked.pem"\n', "crl is only for tls and wss"),
        (f'[[listener]]\n{TLS}crl = "revoked.pem"\nanonymous = true\n', "crl needs client_ca"),
        (f'[[listener]]\n{TLS}client_ca = "ca.pem"\ncrl = "ca.pem"\n', "must hold revocation lists"),
        (
            '[[access.rule]]\nverdict = "allow"\naction = "connect"\ntopic = "a"\n',
            "access.rule.0: a rule for connect has neither topic nor where",
        ),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, line: str) -> None:
    authority = Authority(tmp_path, "ca")
    authority.sign("site")
    authority.revoke()
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=line):
        load(path, {}, {})


def test_a_listener_behind_a_load_balancer_is_not_a_local_one() -> None:
    local, proxied = Listener(), Listener(proxy_protocol=True, trusted_proxies=("127.0.0.1",))
    assert Config().allows_anonymous(local)
    assert not Config().allows_anonymous(proxied)
    assert not Config(access=Access(anonymous="loopback")).allows_anonymous(proxied)


def test_the_site_of_users_is_the_broker_or_its_realm() -> None:
    assert Config(id="a").site == "a"
    assert Config(id="a", access=Access(realm="fleet")).site == "@fleet"
