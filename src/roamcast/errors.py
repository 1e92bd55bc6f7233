"""The one exception that means "the user gave us something we cannot use", and words that help."""

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """Bad input: its text is one line that says what, where, and what would be valid.

    The command line prints it as it is and exits with code 2. Nothing else is
    shown to a user, so the text must stand on its own.
    """


class CannotListenNow(InputError):
    """The port is taken, or the address does not exist yet; a later try may succeed (exit code 75)."""


def cannot_listen(where: str, error: OSError) -> InputError:
    """Return the error for a listener that cannot be opened."""
    is_for_now = error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
    kind = CannotListenNow if is_for_now else InputError
    # asyncio's own text repeats the address; getaddrinfo's numbers are below 0.
    number = error.errno or 0
    why = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
    hint = "; stop the other program, or choose another port" if error.errno == errno.EADDRINUSE else ""
    return kind(f"{where}: cannot listen ({why}{hint})")


def read_text(path: str | Path, what: str = "") -> str:
    """Return the content of a text file, or of standard input for "-"; an error names it behind `what`."""
    where = f"{what} {path}".lstrip()
    try:
        return sys.stdin.read() if str(path) == "-" else Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error})") from None
    except ValueError:
        raise InputError(f"{where}: is not a text file in UTF-8") from None


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that was most likely meant, if any is similar."""
    known = {choice.lower(): choice for choice in choices}
    word = word.lower()
    # Loaded only for those who have mistyped something.
    from difflib import get_close_matches

    longer = [choice for choice in known if choice.startswith(word) and len(word) > 2]
    close = get_close_matches(word, known, n=1, cutoff=0.55)
    return next((known[choice] for choice in longer[:1] + close), None)


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    choice = nearest(word, choices)
    return f"did you mean '{choice}'?" if choice else None


def empty_log(folder: object) -> InputError:
    """Return the error for a log folder without a readable file."""
    return InputError(
        f"log folder {folder}: there is no Parquet file in it"
        " (a broker closes one every `events.file_s` seconds, and when it stops)"
    )
