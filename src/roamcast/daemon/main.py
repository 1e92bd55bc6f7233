"""Starting the broker daemon: recover what the journal holds, then serve."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import uvloop

from roamcast import __version__
from roamcast.core.snapshot import thaw
from roamcast.daemon.journal import Journal
from roamcast.daemon.sections import Config
from roamcast.daemon.server import Server
from roamcast.daemon.settings import site_settings
from roamcast.errors import InputError
from roamcast.site.inputs import Started, decode_entry
from roamcast.site.site import Site

log = logging.getLogger("roamcast")


def serve(config: Config, reread: Callable[[], Config]) -> None:
    """Run a broker until it is told to stop; `reread` reads its configuration anew."""
    logging.basicConfig(
        stream=sys.stderr, level=config.log.level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    uvloop.run(_serve(config, reread))


async def _serve(config: Config, reread: Callable[[], Config]) -> None:
    journal, recovered = Journal.open(
        config.journal_folder,
        sync=config.journal.sync,
        version=__version__,
        segment_bytes=config.journal.segment_bytes,
        snapshot_after_bytes=config.journal.snapshot_after_bytes,
        journal_bytes_max=config.journal.bytes_max,
    )
    try:
        site: Site | None = thaw(recovered.snapshot) if recovered.snapshot is not None else None
        for note in recovered.notes:
            log.warning("%s", note)
        for data in recovered.entries:
            entry = decode_entry(data)
            if site is None:
                first = entry.inputs[0]
                if not isinstance(first, Started):
                    raise InputError(f"journal {config.journal_folder}: it does not begin with a start")
                site = Site(first.settings)
            site.step(entry.now, entry.inputs)
        await Server(config, site or Site(site_settings(config)), journal, reread).run()
    finally:
        journal.close()
