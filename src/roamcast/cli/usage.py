"""Groups of commands, examples in help texts, and errors for mistyped commands.

Typer reports an error with several lines in a box. Here an error is one line that names what was wrong and
the nearest valid word, readable in a terminal, in a log and in a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from roamcast.errors import InputError, did_you_mean, nearest

if TYPE_CHECKING:
    from roamcast.cli.flags import Command

# Typer either contains a copy of click or uses the installed one, depending on its version. In both, Typer
# exports BadParameter, and its base classes are the errors to handle.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
ClickException: type[Exception] = UsageError.__bases__[0]


NOT_A_NUMBER = re.compile(r"is not a valid (integer|int|float)( range)?")
OUT_OF_RANGE = re.compile(r"is not in the range ([\d.e+-]+)<=x<=([\d.e+-]+)")
EXTRA_ARGUMENT = re.compile(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def option(default: Any, help: str, *names: str, **settings: Any) -> Any:
    """Declare an option as the default of a parameter; `...` makes it required.

    `names` replace the name that follows from the parameter; `settings` are those of `typer.Option`.
    """
    return typer.Option(default, *names, help=help, **settings)


def argument(default: Any, help: str, **settings: Any) -> Any:
    """Declare an argument like `option`."""
    return typer.Argument(default, help=help, **settings)


class CommandGroup(TyperGroup):
    """A group that answers a missing or unknown command in one line."""

    needs_command = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.needs_command and not args and not ctx.resilient_parsing:
            raise InputError(f"'{ctx.command_path}' needs a command: {', '.join(self.list_commands(ctx))}")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        commands = self.list_commands(ctx)
        if args[0] not in commands and not ctx.resilient_parsing:
            known = did_you_mean(args[0], commands) or f"valid are: {', '.join(commands)}"
            raise InputError(f"'{ctx.command_path}' has no command '{args[0]}'; {known}")
        return super().resolve_command(ctx, args)


def new_group(help: str, *, examples: Iterable[str], completion: bool = False) -> typer.Typer:
    """Create a group of commands; `add_typer` adds it to another one. `completion` adds options for the
    shell's completion.
    """
    return typer.Typer(
        cls=CommandGroup,
        help=help,
        epilog=show_examples(*examples),
        add_completion=completion,
        # Plain help can be copied, and is not broken at the width of a box.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def register_own(app: typer.Typer, command: Command) -> None:
    """Add a command that parses its arguments with its own table."""

    class OwnCommand(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            command.parse(args)
            ctx.args = list(args)
            return args

    def run(context: typer.Context) -> None:
        raise typer.Exit(command.run(context.args))

    summary = command.summary.partition("\n\n")[0]
    app.command(command.name, cls=OwnCommand, help=summary, add_help_option=False)(run)


def show_examples(*commands: str) -> str:
    """Return the epilog with commands as they are typed."""
    # Click's mark for a paragraph that must not be wrapped.
    return "\n".join(["\b", "Examples:" if len(commands) > 1 else "Example:", *(f"  {c}" for c in commands)])


def describe_usage_error(error: Exception) -> str:
    """Turn an error of Typer's argument parser into one line."""
    context: Any = getattr(error, "ctx", None)
    option: str | None = getattr(error, "option_name", None)
    # If a known option lacks its value, the error has its name, too, but then the message is sufficient.
    if option is not None and context is not None and option not in options_of(context):
        # Dashes would make every short option similar to every other.
        options = {one.lstrip("-"): one for one in options_of(context)}
        near = nearest(option.lstrip("-"), options)
        known = f"did you mean '{options[near]}'?" if near else f"see '{context.command_path} --help'"
        return f"'{context.command_path}' has no option {option}; {known}"
    text = " ".join(str(getattr(error, "format_message", error.__str__)()).split()).rstrip(".")
    text = EXTRA_ARGUMENT.sub(r"unexpected argument '\1'", text)
    text = NOT_A_NUMBER.sub(
        lambda found: "is not a whole number" if "int" in found[0] else "is not a number", text
    )
    text = OUT_OF_RANGE.sub(r"is not between \1 and \2", text)
    text = text[:1].lower() + text[1:]
    return f"{text}; see '{context.command_path} --help'" if context is not None else text


def options_of(context: Any) -> list[str]:
    """Return the long and short options of the command that a context belongs to."""
    parameters = context.command.get_params(context)
    return [
        option
        for parameter in parameters
        for option in [*parameter.opts, *parameter.secondary_opts]
        if option.startswith("-")
    ]
