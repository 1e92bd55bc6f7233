"""No mobility support (Caporuscio et al., figs. 8 and 9a).

The client's subscriptions are issued again wherever it attaches and withdrawn
when it goes. Lost are notifications published while the client is away, those
still on their way to the old broker, and those that missed the subscription on
its way from the new.
"""

from __future__ import annotations

from roamcast.mobility.base import MobilityProtocol, register
from roamcast.state import State


class NoMobility(MobilityProtocol):
    name = "none"
    takes_back = True
    summary = "what is published while the client is away is lost"

    __state__ = State("mobility-none")


register(NoMobility)
