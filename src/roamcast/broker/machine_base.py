"""What machines of both families do alike."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

from roamcast.broker.contract import AnyLinks
from roamcast.broker.fronts import ClientFront
from roamcast.broker.inputs import MachineEffects
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import MachineSettings
from roamcast.broker.wills import PublishThat
from roamcast.errors import InputError
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.protocol.effects import CommandGiven


class Answering(Protocol):
    answers: list[IsHere]


AFront = TypeVar("AFront", bound=ClientFront)


class MachineBase(Generic[AFront]):
    id: str
    settings: MachineSettings
    front: AFront
    links: AnyLinks
    seeking: Answering
    _out: MachineEffects

    def journalled(self, over: Collection[str] = ()) -> None:
        """Everything that this site has received is in the journal: its peers may be told.

        `over` are those for whom too much is kept; while there are any, the others are told nothing.
        """
        for peer, end in self.links.ends.items():
            if not over or (peer in over and len(over) == 1):
                end.acknowledge()

    def _check_start(self, settings: MachineSettings) -> None:
        """A state goes on only as what it was."""
        if (settings.id, settings.protocol) != (self.id, self.settings.protocol):
            raise InputError(
                f"this state is that of broker {self.id!r} with {self.settings.protocol}: it cannot become "
                f"{settings.id!r} with {settings.protocol}"
            )

    @property
    def endpoint(self) -> Endpoint:
        """The MQTT front, which every machine has that a daemon drives."""
        front: object = self.front
        assert isinstance(front, Endpoint)
        return front

    def publish(self, topic: str, marks: bytes, body: bytes) -> None:
        """A will (see mqtt.endpoint.Keeper)."""
        self.front.inputs.append(CommandGiven(PublishThat(topic, marks, body)))
