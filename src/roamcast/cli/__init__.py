"""The `roamcast` command: each command has its own module; this module has what all commands share.

Exit codes: 0 for success, 1 when a run broke a promise, 2 for an error that the user can correct, 70 for an
internal error, 75 for a port in use (a later try may succeed), 130 after an interruption, 141 when the reader
of the output closed the pipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from roamcast.errors import CannotListenNow, InputError

if TYPE_CHECKING:
    import typer

EXIT_INPUT = 2
EXIT_INTERNAL = 70
EXIT_TRY_AGAIN = 75
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main() -> int:
    """Entry point of the installed `roamcast` command."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["pub"], ["sub"]):
        # Scripts call these for every message, so they run without loading the other commands.
        return answered(lambda: run_client_command(*arguments))
    if arguments[:1] == ["broker"]:
        from roamcast.cli.starting import plain_flags, run_plain

        flags = plain_flags(arguments[1:])
        if flags is not None:
            return answered(lambda: run_plain(flags))
        return answered(lambda: invoke("broker", arguments))
    return answered(lambda: invoke("", arguments))


def invoke(only: str, arguments: Sequence[str]) -> int:
    """Build the commands and run one. Building imports many modules, and may be interrupted, too."""
    from roamcast.cli import app

    return app.invoke(build_app(only), arguments)


def run_client_command(name: str, *arguments: str) -> int:
    if name == "pub":
        from roamcast.cli.pub import COMMAND
    else:
        from roamcast.cli.sub import COMMAND
    return COMMAND.run(arguments)


def build_app(only: str = "") -> typer.Typer:
    """Build all commands, or only one (see app.build_app)."""
    from roamcast.cli.app import build_app as build

    return build(only)


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; an error becomes one line on stderr."""
    from roamcast.cli.app import invoke

    return answered(lambda: invoke(app, arguments))


def answered(work: Callable[[], int]) -> int:
    try:
        code = work()
        # Flush here, where a closed pipe can be handled.
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except CannotListenNow as error:
        return complain(str(error), EXIT_TRY_AGAIN)
    except InputError as error:
        return complain(str(error), EXIT_INPUT)
    except ModuleNotFoundError as error:
        from roamcast.cli.extras import missing_extra

        missing = missing_extra(error.name or "", sys.argv[1:])
        return complain(missing, EXIT_INPUT) if missing else _complain_of_fault(error)
    except ImportError as error:
        if not (error.path or "").endswith(".so"):
            return _complain_of_fault(error)
        package = (error.name or error.path or "").partition(".")[0]
        return complain(f"the package {package} cannot be loaded ({error}); install that library", EXIT_INPUT)
    except KeyboardInterrupt:
        return complain("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return leave_quietly()
    except Exception as error:
        return _complain_of_fault(error)


def _complain_of_fault(error: Exception) -> int:
    if os.environ.get("ROAMCAST_DEBUG") == "1":
        import traceback

        traceback.print_exc()
        return EXIT_INTERNAL
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return complain(f"internal error: {what}; set ROAMCAST_DEBUG=1 for the traceback", EXIT_INTERNAL)


def complain(text: str, code: int) -> int:
    print(f"roamcast: {' '.join(text.split())}", file=sys.stderr)
    return code


def leave_quietly() -> int:
    """Exit with the code of SIGPIPE, without Python's message about a broken pipe."""
    # Python flushes stdout once more at the end, which must not fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE
