"""Which site a protocol gets is asked of the registries."""

import pytest

from roamcast.broker.making import make_machine
from roamcast.broker.settings import MachineSettings
from roamcast.errors import InputError


def test_links_of_client_mobility_must_not_cycle() -> None:
    assert not make_machine(MachineSettings("a")).links_may_cycle


def test_an_unknown_protocol_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(InputError, match=r"protocol 'teleport': valid are .*mft.*reactive"):
        make_machine(MachineSettings("a", protocol="teleport"))
