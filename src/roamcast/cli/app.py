"""All commands: what `roamcast --help` lists, and how a command line is run."""

from __future__ import annotations

import os
from collections.abc import Sequence

import typer
from typer.main import get_command

from roamcast import __version__, state
from roamcast.cli.usage import ClickException, describe_usage_error, new_group, option, register_own
from roamcast.errors import InputError
from roamcast.plugins import load_protocols

COMPLETION = "_ROAMCAST_COMPLETE"
"""Set by the script that `roamcast --show-completion` prints."""


def build_app(only: str = "") -> typer.Typer:
    """Build all commands, or `broker` alone: a broker process keeps the modules loaded at its start."""
    app = new_group(
        "Publish/subscribe for things that move.",
        examples=["roamcast demo", 'eval "$(roamcast --show-completion)"'],
        completion=True,
    )
    app.callback()(root)
    if only == "broker":
        from roamcast.cli import broker

        broker.register(app)
    else:
        register_all(app)
    return app


def register_all(app: typer.Typer) -> None:
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
        network,
        pipeline,
        proxy,
        pub,
        sim,
        sub,
        trace,
        user,
        view,
    )

    # One line for each module of commands, in the order of --help. Heavy imports belong inside the commands:
    # this runs at every start.
    demo.register(app)
    view.register(app)
    broker.register(app)
    network.register(app)
    proxy.register(app)
    register_own(app, pub.COMMAND)
    register_own(app, sub.COMMAND)
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


def print_version(wanted: bool) -> None:
    if wanted:
        is_compiled = not state.__file__.endswith(".py")
        print(f"roamcast {__version__}{' (compiled)' if is_compiled else ''}")
        raise typer.Exit


def root(
    version: bool = option(
        False, "Show the version and exit.", "--version", is_eager=True, callback=print_version
    ),
) -> None:
    pass


def invoke(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; Typer's errors become one line each."""
    load_protocols()
    try:
        command = get_command(app)
        if COMPLETION in os.environ:
            command(prog_name="roamcast")  # A request of the shell for completions; it ends here.
        # Not command.main(): it would print errors in its own format.
        with command.make_context("roamcast", list(arguments) or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except ClickException as error:
        raise InputError(describe_usage_error(error)) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0
