"""Which site a protocol gets is asked of the registries."""

import pytest

from roamcast.broker.making import make_site
from roamcast.broker.settings import SiteSettings
from roamcast.errors import InputError


def test_links_of_client_mobility_must_not_cycle() -> None:
    assert not make_site(SiteSettings("a")).links_may_cycle


def test_an_unknown_protocol_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(InputError, match=r"protocol 'teleport': valid are .*mft.*reactive"):
        make_site(SiteSettings("a", protocol="teleport"))
