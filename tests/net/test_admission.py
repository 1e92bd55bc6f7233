"""Who comes in, as whom, and the reason codes for those who do not."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast.config.sections import Access, Config, HttpHook, Listener
from roamcast.errors import InputError
from roamcast.mqtt import scram
from roamcast.mqtt.codec.packets import Connect
from roamcast.mqtt.codec.reasons import IN_CONNACK, Reason
from roamcast.mqtt.server.access import Identity
from roamcast.net.admission import Admission, Admitted, Ask
from roamcast.net.clients import ConnectionRefused, without_secrets
from roamcast.net.hook import Answer, Hook, Question
from roamcast.net.users import changing_users, hash_password, with_scram

OPEN, CLOSED = Listener(anonymous=True), Listener(anonymous=False)
CERTIFICATE = {"subject": ((("commonName", "car-7"),),)}
NAMELESS = {"subject": ((("organizationName", "cars"),),)}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = str(tmp_path / "users")
    with changing_users(path) as users:
        users["alice"] = hash_password(b"open sesame")
    return Config(access=Access(users=path, failures_max=2))


def identify(
    admission: Admission, listener: Listener, certificate: dict[str, Any] | None = None, **said: Any
) -> Identity:
    connect = Connect(version=5, client_id="", **said)
    admitted = asyncio.run(admission.identify(listener, connect, "phone", "192.0.2.1", certificate))
    return admitted.identity


def refusal(admission: Admission, listener: Listener, **said: Any) -> Reason:
    with pytest.raises(ConnectionRefused) as refused:
        identify(admission, listener, **said)
    assert refused.value.reason in IN_CONNACK
    return refused.value.reason


def test_who_brings_nothing_is_anonymous_where_that_is_allowed(config: Config) -> None:
    admission = Admission(config)
    assert identify(admission, OPEN) == Identity("phone")
    assert refusal(admission, CLOSED) is Reason.NOT_AUTHORIZED
    assert refusal(admission, Listener()) is Reason.NOT_AUTHORIZED, "there are users"


@pytest.mark.parametrize("listener", [OPEN, CLOSED])
def test_a_name_must_be_proved_everywhere(config: Config, listener: Listener) -> None:
    admission = Admission(config)
    alice = identify(admission, listener, username="alice", password=b"open sesame")
    assert alice == Identity("phone", user="alice", site="broker")
    attempts: tuple[dict[str, Any], ...] = (
        {"username": "alice", "password": b"open barley"},
        {"username": "alice"},
        {"username": "eve", "password": b"open sesame"},
        {"username": ""},
        {"password": b"open sesame"},
    )
    for said in attempts:
        assert refusal(admission, listener, **said) is Reason.BAD_USER_NAME_OR_PASSWORD


def test_who_guesses_is_told_to_slow_down(config: Config) -> None:
    admission = Admission(config)
    reasons = [refusal(admission, OPEN, username="alice", password=b"%d" % number) for number in range(3)]
    assert reasons == [
        Reason.BAD_USER_NAME_OR_PASSWORD,
        Reason.BAD_USER_NAME_OR_PASSWORD,
        Reason.CONNECTION_RATE_EXCEEDED,
    ]


def test_a_certificate_is_enough(config: Config) -> None:
    admission = Admission(config)
    assert identify(admission, CLOSED, CERTIFICATE) == Identity("phone", certificate="car-7", site="broker")
    both = identify(admission, CLOSED, CERTIFICATE, username="alice", password=b"open sesame")
    assert both == Identity("phone", user="alice", certificate="car-7", site="broker")
    assert refusal(admission, CLOSED, certificate=NAMELESS) is Reason.NOT_AUTHORIZED
    with pytest.raises(ConnectionRefused):
        identify(admission, CLOSED, CERTIFICATE, username="alice", password=b"wrong")


def test_where_there_are_no_users_a_name_proves_nothing() -> None:
    admission = Admission(Config())
    assert identify(admission, Listener(), username="alice", password=b"x") == Identity("phone")
    assert refusal(admission, CLOSED, username="alice", password=b"x") is Reason.NOT_AUTHORIZED


def test_other_ways_to_authenticate_are_refused(config: Config) -> None:
    assert refusal(Admission(config), OPEN, authentication_method="SCRAM") is Reason.BAD_AUTHENTICATION_METHOD


def test_a_password_goes_no_further() -> None:
    connect = Connect(5, "x", username="alice", password=b"open sesame", authentication_data=b"secret")
    kept = without_secrets(connect)
    assert b"sesame" not in msgspec.msgpack.encode(kept)
    assert b"secret" not in msgspec.msgpack.encode(kept)
    assert kept == Connect(5, "x", username="alice")


def test_users_are_read_again(config: Config) -> None:
    admission = Admission(config)
    with changing_users(config.access.users) as users:
        users["bob"] = hash_password(b"builder")
        del users["alice"]
    bob: dict[str, Any] = {"username": "bob", "password": b"builder"}
    assert refusal(admission, OPEN, **bob) is Reason.BAD_USER_NAME_OR_PASSWORD
    admission.reconfigure(config)
    assert identify(admission, OPEN, **bob).user == "bob"
    broken = msgspec.structs.replace(config, access=Access(users="absent"))
    with pytest.raises(InputError, match=r"access\.users = absent: cannot be read"):
        admission.reconfigure(broken)
    assert identify(admission, OPEN, **bob).user == "bob"
    admission.close()


# What still holds when users change.


def change_users(config: Config, **passwords: bytes | None) -> None:
    with changing_users(config.access.users) as users:
        for name, password in passwords.items():
            if password is None:
                del users[name]
            else:
                users[name] = hash_password(password)


def admit(admission: Admission, listener: Listener, **said: Any) -> Admitted:
    return asyncio.run(admission.identify(listener, Connect(5, "", **said), "phone", "192.0.2.1"))


def test_what_was_proved_is_looked_at_again_when_users_change(config: Config) -> None:
    change_users(config, bob=b"builder", carol=b"singer")
    admission = Admission(config)
    said = {"alice": b"open sesame", "bob": b"builder", "carol": b"singer"}
    admitted = [admit(admission, CLOSED, username=name, password=word) for name, word in said.items()]
    admitted.append(admit(admission, OPEN))
    assert not any(admission.objection(one, OPEN) for one in admitted)
    change_users(config, alice=None, bob=b"another")
    assert admission.reconfigure(config) == ("alice",)
    assert [admission.objection(one, OPEN) for one in admitted] == [
        "its user was removed",
        "its password was changed",
        "",
        "",
    ]
    assert admission.objection(admitted[3], CLOSED) == "anonymous clients are not allowed any more"
    assert admission.owners(("alice",)) == ("broker/user:alice",)


def test_sessions_of_users_that_nobody_knows_are_found_at_the_start(config: Config) -> None:
    owners = ["anonymous", "broker/user:alice", "broker/user:eve", "broker/certificate:car", "b/user:eve"]
    assert Admission(config).unknown(owners) == ("broker/user:eve",)
    in_realm = msgspec.structs.replace(config.access, realm="fleet")
    elsewhere = msgspec.structs.replace(config, access=in_realm)
    assert Admission(elsewhere).unknown([*owners, "@fleet/user:eve"]) == (), "others may know them"
    service = msgspec.structs.replace(config.access, http=HttpHook(url="http://127.0.0.1:1/"))
    assert Admission(msgspec.structs.replace(config, access=service)).unknown(owners) == ()


# --- guesses that are begun at once ---


async def refusals_of(
    admission: Admission, guesses: int, ask: Callable[[int], Ask] | None, gate: asyncio.Event, **said: Any
) -> Counter[Reason]:
    """Begin so many logins as alice, let them go on together, and count how they are refused."""

    async def guess(number: int) -> Reason:
        connect = Connect(5, "", **said)
        if ask is not None:
            first = scram.ClientExchange("alice", b"", b"%d" % number).first()
            connect = Connect(5, "", authentication_method=scram.METHOD, authentication_data=first)
        asked = ask(number) if ask is not None else None
        try:
            await admission.identify(CLOSED, connect, f"c{number}", "192.0.2.1", None, asked)
        except ConnectionRefused as refused:
            return refused.reason
        raise AssertionError("a guess was right")

    tasks = [asyncio.create_task(guess(number)) for number in range(guesses)]
    await asyncio.sleep(0)
    gate.set()
    return Counter(await asyncio.gather(*tasks))


def test_guesses_by_scram_that_are_begun_at_once_count_one_by_one(tmp_path: Path) -> None:
    path = str(tmp_path / "users")
    with changing_users(path) as users:
        users["alice"] = with_scram(hash_password(b"open sesame"), b"open sesame")
    admission = Admission(Config(access=Access(users=path, failures_max=2)))

    async def story() -> Counter[Reason]:
        gate = asyncio.Event()

        def ask(number: int) -> Ask:
            async def answer(challenge: bytes) -> bytes:
                await gate.wait()
                return scram.ClientExchange("alice", b"wrong", b"%d" % number).answer(challenge)

            return answer

        return await refusals_of(admission, 5, ask, gate)

    reasons = asyncio.run(story())
    assert reasons == {Reason.BAD_USER_NAME_OR_PASSWORD: 2, Reason.CONNECTION_RATE_EXCEEDED: 3}


class StubbedHook(Hook):
    """A service that answers when the gate is open."""

    def __init__(self, answer: Answer, clock: Callable[[], float] = lambda: 100.0) -> None:
        super().__init__(HttpHook(url="http://127.0.0.1:1/", cache_s=60.0), clock)
        self.gate = asyncio.Event()
        self.answer = answer
        self.asked = 0

    async def _post(self, body: bytes) -> Answer:
        self.asked += 1
        await self.gate.wait()
        return self.answer


def test_guesses_at_a_service_that_are_begun_at_once_count_like_failures() -> None:
    hook_at = HttpHook(url="http://127.0.0.1:1/")
    admission = Admission(Config(access=Access(http=hook_at, failures_max=2)))

    async def story() -> Counter[Reason]:
        admission._hook = hook = StubbedHook(Answer(allow=False))
        reasons = await refusals_of(admission, 5, None, hook.gate, username="alice", password=b"x")
        assert hook.asked == 2
        return reasons

    reasons = asyncio.run(story())
    assert reasons == {Reason.BAD_USER_NAME_OR_PASSWORD: 2, Reason.CONNECTION_RATE_EXCEEDED: 3}


def test_a_remembered_answer_ends_when_the_service_said() -> None:
    now = [100.0]

    async def story() -> list[float | None]:
        hook = StubbedHook(Answer(allow=True, expires_s=10.0), lambda: now[0])
        hook.gate.set()
        ends = []
        for now[0] in (100.0, 109.0, 111.0):
            ends.append((await hook.ask(Question("alice", b"x", "phone", "192.0.2.1", "a"))).expires_at)
        assert hook.asked == 2
        return ends

    assert asyncio.run(story()) == [110.0, 110.0, 121.0]
