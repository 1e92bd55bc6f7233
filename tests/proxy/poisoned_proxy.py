"""Runs `roamcast` with a proxy that raises when an MQTT client with the id `bad` attaches.

python poisoned_proxy.py proxy --config site.toml
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from roamcast.cli import main
from roamcast.proxy import steps
from roamcast.proxy.service import Service

whole_step = Service.step


def step(self: Service, now: float, inputs: Iterable[steps.Input]) -> list[steps.Effect]:
    inputs = list(inputs)
    effects = whole_step(self, now, inputs)
    attached = [one.message for one in inputs if isinstance(one, steps.Got)]
    if any(isinstance(one, steps.Attach) and one.client == "bad" for one in attached):
        raise KeyError("poisoned")
    return effects


if __name__ == "__main__":
    Service.step = step  # type: ignore[method-assign]
    sys.exit(main())
