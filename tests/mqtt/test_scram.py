"""SCRAM-SHA-256: the example of RFC 7677, and what must not pass."""

from __future__ import annotations

from base64 import b64decode

import pytest

from roamcast.errors import InputError
from roamcast.mqtt.scram import ClientExchange, ScramError, ScramVerifier, ServerExchange, decoy

PASSWORD = b"pencil"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
VERIFIER = ScramVerifier.of(PASSWORD, SALT, 4096)


def server() -> ServerExchange:
    exchange = ServerExchange(CLIENT_FIRST, b"")
    exchange._nonce = SERVER_NONCE
    assert exchange.challenge(VERIFIER) == SERVER_FIRST
    return exchange


def test_the_example_of_rfc_7677() -> None:
    client = ClientExchange("user", PASSWORD, b"")
    client._nonce, client._first_bare = "rOprNGfwEbeRWgbNEkqO", CLIENT_FIRST.decode()[3:]
    assert client.answer(SERVER_FIRST) == CLIENT_FINAL
    assert client.is_server(SERVER_FINAL)
    assert server().user == "user"
    assert server().finish(CLIENT_FINAL) == SERVER_FINAL


def test_a_verifier_is_read_as_it_was_written() -> None:
    assert ScramVerifier.read(VERIFIER.text) == VERIFIER
    for text in ("", "SCRAM-SHA-1$4096:YQ==$YQ==:YQ==", VERIFIER.text.replace("4096", "1"), "a$b$c"):
        with pytest.raises(InputError):
            ScramVerifier.read(text)


@pytest.mark.parametrize(
    "message",
    [
        CLIENT_FINAL.replace(b"biws", b"eSws"),
        CLIENT_FINAL.replace(b"hNlF$k0", b"hNlF$k1"),
        CLIENT_FINAL.replace(b"p=", b"q="),
        CLIENT_FINAL.replace(b"c=biws", b"m=x,c=biws"),
        b"\xff",
        b"",
    ],
)
def test_a_message_that_does_not_belong_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        server().finish(message)


@pytest.mark.parametrize("proof", [b"p=", b"p=YQ==", b"p=" + b"A" * 43 + b"="])
def test_a_wrong_proof_is_no_proof(proof: bytes) -> None:
    assert server().finish(CLIENT_FINAL.partition(b"p=")[0] + proof) is None


def test_names_are_escaped() -> None:
    exchange = ServerExchange(ClientExchange("a,b=c", PASSWORD, b"n").first(), b"s")
    assert exchange.user == "a,b=c"
    with pytest.raises(ScramError):
        ServerExchange(b"n,,n=a=b,r=x", b"s")


def test_a_client_leaves_a_server_that_asks_for_too_little_or_answers_somebody_else() -> None:
    client = ClientExchange("user", PASSWORD, b"nonce")
    for challenge in (SERVER_FIRST, b"r=bm9uY2U=x,s=YQ==,i=1", b"r=bm9uY2U=x,i=4096", b"x"):
        with pytest.raises(ScramError):
            client.answer(challenge)
    assert not client.is_server(SERVER_FINAL)


def test_an_unknown_user_has_the_same_salt_each_time() -> None:
    key = b"k" * 32
    assert decoy("eve", key) == decoy("eve", key) != decoy("eva", key)
