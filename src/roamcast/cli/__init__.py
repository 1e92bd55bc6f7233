"""The `roamcast` command: its commands live in modules of their own, its manners live here.

Exit codes: 0 for success, 1 when a run broke a promise, 2 for something the user can put right, 70
for a fault of ours, 130 after an interruption, 141 when the reader of our output went away.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from roamcast import __version__
from roamcast.cli import (
    bench,
    broker,
    demo,
    fuzz,
    journal,
    lab,
    link,
    location,
    model,
    pipeline,
    proxy,
    pub,
    sim,
    sub,
    trace,
    user,
)
from roamcast.cli.usage import ClickException, describe_usage_error, new_group
from roamcast.errors import InputError

EXIT_INPUT = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main() -> int:
    """What the installed `roamcast` command calls."""
    return run(build_app(), sys.argv[1:])


def build_app() -> typer.Typer:
    app = new_group(
        "Publish/subscribe for things that move.",
        examples=["roamcast demo", "roamcast bench match --subscriptions 10000"],
    )
    app.callback()(root)
    # One line for each module of commands, in the order in which --help lists them. Their heavy
    # imports belong inside the commands: this is run at every start.
    demo.register(app)
    broker.register(app)
    proxy.register(app)
    pub.register(app)
    sub.register(app)
    user.register(app)
    journal.register(app)
    location.register(app)
    link.register(app)
    sim.register(app)
    fuzz.register(app)
    lab.register(app)
    model.register(app)
    pipeline.register(app)
    trace.register(app)
    bench.register(app)
    return app


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"roamcast {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=print_version),
    ] = False,
) -> None:
    pass


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line and give its exit code; whatever goes wrong becomes one line on stderr."""
    try:
        command = get_command(app)
        # Not command.main(): it prints errors in its own way before we could.
        with command.make_context("roamcast", list(arguments) or ["--help"]) as context:
            command.invoke(context)
        # What is still buffered is written here, where a reader that went away can be answered.
        sys.stdout.flush()
    except typer.Exit as end:
        return flushed(end.exit_code)
    except InputError as error:
        return complain(str(error), EXIT_INPUT)
    except ClickException as error:
        return complain(describe_usage_error(error), EXIT_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return complain("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return leave_quietly()
    except Exception as error:
        if os.environ.get("ROAMCAST_DEBUG") == "1":
            traceback.print_exc()
            return EXIT_INTERNAL
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return complain(f"internal error: {what}; set ROAMCAST_DEBUG=1 for the traceback", EXIT_INTERNAL)
    return 0


def complain(text: str, code: int) -> int:
    print(f"roamcast: {' '.join(text.split())}", file=sys.stderr)
    return code


def flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return leave_quietly()
    return code


def leave_quietly() -> int:
    """End like a program that the system stopped for writing to nobody, without Python's complaint."""
    # Python flushes stdout once more at the end, and must find something that takes it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE
