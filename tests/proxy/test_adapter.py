"""The registry of adapters: who is found by name, and what is said where nobody is."""

import asyncio
from typing import cast

import pytest

from roamcast.errors import InputError
from roamcast.proxy.adapter import KINDS, Adapter, AdapterError, known_kinds, open_adapter, register
from roamcast.proxy.client import RoamingClient


def test_an_unknown_kind_is_one_line_with_a_hint() -> None:
    with pytest.raises(InputError, match="'mosquito': did you mean 'mosquitto'"):
        open_adapter("mosquito", "mqtt://127.0.0.1")


def test_a_registered_kind_is_made_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roamcast.proxy.adapter._registered", {})
    made: list[tuple[str, dict[str, object]]] = []
    register("own", lambda url, **options: made.append((url, options)))  # type: ignore[arg-type]
    open_adapter("own", "own://here", qos=1)
    assert made == [("own://here", {"qos": 1})]
    assert {"own", *KINDS} <= set(known_kinds())


def test_a_missing_module_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "absent", "roamcast_absent:Adapter")
    with pytest.raises(InputError, match=r"roamcast_absent is missing; run: pip install 'roamcast\[proxy\]'"):
        open_adapter("absent", "absent://here")


def test_a_client_whose_broker_is_gone_closes_what_it_has_opened() -> None:
    class Gone:
        is_closed = False

        async def unsubscribe(self, name: str, filter: str) -> None:
            raise AdapterError("the broker is down")

        async def close(self) -> None:
            self.is_closed = True

    async def story() -> bool:
        client, gone = RoamingClient("c", {}), Gone()
        client.filters, client._adapter = {"a/b": None}, cast(Adapter, gone)
        await client.close()
        return gone.is_closed

    assert asyncio.run(story())
