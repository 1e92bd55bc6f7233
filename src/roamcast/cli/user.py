"""`roamcast user`: the file of users that a broker checks passwords against."""

from __future__ import annotations

import sys
from getpass import getpass
from typing import Annotated, Literal

import typer

from roamcast.cli.output import emit_json
from roamcast.cli.usage import AsJson, argument, new_group, option, show_examples
from roamcast.errors import InputError, did_you_mean

EXIT_WRONG_PASSWORD = 1
TokenRight = Literal["read", "operate"]

TOKEN = "roamcast user token dashboard --may read"
ADD = "roamcast user add alice --file site-users"

Name = Annotated[str, typer.Argument(help="The user's name.")]
File = Annotated[str, typer.Option(envvar="ROAMCAST_ACCESS_USERS", help="The file of users.")]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input, not from a terminal.")
]


def register(app: typer.Typer) -> None:
    group = new_group("Users of a broker and their passwords.", examples=[ADD])
    app.add_typer(group, name="user")
    group.command("add", epilog=show_examples(ADD))(add)
    group.command("remove", epilog=show_examples("roamcast user remove alice --file site-users"))(remove)
    group.command("list", epilog=show_examples("roamcast user list --file site-users --json"))(list_users)
    group.command("token", epilog=show_examples(TOKEN))(token)
    group.command("check", epilog=show_examples("roamcast user check alice --file site-users"))(check)


def add(
    name: Name,
    file: File = "roamcast-users",
    password_stdin: FromStdin = False,
    replace: bool = option(False, "Replace the password of an existing user.", "--replace"),
    scram: bool = option(False, "Let the user log in by SCRAM-SHA-256 (MQTT 5), too.", "--scram"),
) -> None:
    """Add a user. Creates the file if needed; a running broker reads it again on SIGHUP."""
    from roamcast.net.users import changing_users, check_name, hash_password, with_scram

    def refuse_known(users: dict[str, str]) -> None:
        if name in users and not replace:
            raise InputError(f"{file}: user {name!r} exists already; --replace sets a new password")

    check_name(name)
    with changing_users(file) as users:
        refuse_known(users)
    # The password is asked outside the lock, so that nobody else waits for the typing.
    password = read_password(password_stdin, name, twice=True)
    hashed = hash_password(password)
    if scram:
        hashed = with_scram(hashed, password)
    with changing_users(file) as users:
        refuse_known(users)
        users[name] = hashed
    print(f"user {name} can log in with this password; send the broker SIGHUP if it runs", file=sys.stderr)


def remove(name: Name, file: File = "roamcast-users") -> None:
    """Remove a user. A running broker reads the file again on SIGHUP."""
    from roamcast.net.users import changing_users

    with changing_users(file) as users:
        if name not in users:
            raise InputError(f"{file}: there is no user {name!r}; {known_users(name, users)}")
        del users[name]
    print(f"user {name} is removed; send the broker SIGHUP if it runs", file=sys.stderr)


def list_users(
    file: File = "roamcast-users",
    as_json: AsJson = False,
) -> None:
    """List the users by name."""
    from roamcast.net.users import read_users

    users = read_users(file, "--file")
    if as_json:
        emit_json({"users": sorted(users)})
        return
    for name in sorted(users):
        print(name)


def check(name: Name, file: File = "roamcast-users", password_stdin: FromStdin = False) -> None:
    """Check a user's password: exit code 0 if it is right, 1 if it is not."""
    from roamcast.net.passwords import is_password
    from roamcast.net.users import read_users

    users = read_users(file, "--file")
    if name not in users:
        raise InputError(f"{file}: there is no user {name!r}; {known_users(name, users)}")
    right = is_password(users[name], read_password(password_stdin, name))
    print("right" if right else "wrong")
    if not right:
        raise typer.Exit(EXIT_WRONG_PASSWORD)


def token(
    name: str = argument(..., "Name of the program in the broker's log."),
    may: TokenRight = option("read", "What the program may do over the HTTP API."),
    as_json: AsJson = False,
) -> None:
    """Create a token for a program that uses the HTTP API, and print the lines for the broker's
    configuration.

    The configuration holds only the token's hash: the token itself is shown once.
    """
    import hashlib
    import secrets

    drawn = secrets.token_urlsafe(32)
    digest = hashlib.sha256(drawn.encode()).hexdigest()
    if as_json:
        emit_json({"token": drawn, "name": name, "sha256": digest, "may": may})
        return
    print(f"the token, for Authorization: Bearer TOKEN: {drawn}", file=sys.stderr)
    print(f'[[view.token]]\nname = "{name}"\nsha256 = "{digest}"\nmay = "{may}"')


def known_users(name: str, users: dict[str, str]) -> str:
    return did_you_mean(name, users) or f"`roamcast user list` shows the {len(users)} there are"


def read_password(from_stdin: bool, name: str, *, twice: bool = False) -> bytes:
    """Read the password from the first line of standard input, or from the terminal without echo."""
    from roamcast.net.users import PASSWORD_BYTES_MAX

    if from_stdin:
        # One byte more than is valid, so that a longer password is refused and not cut.
        return sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 2).removesuffix(b"\n").removesuffix(b"\r")
    if not sys.stdin.isatty():
        raise InputError("there is no terminal to ask for the password on; give it with --password-stdin")
    password = getpass(f"Password of {name}: ", stream=sys.stderr)
    if twice and getpass("Once more: ", stream=sys.stderr) != password:
        raise InputError("the two passwords are different; nothing was changed")
    return password.encode("utf-8", "surrogateescape")
