"""The flags of commands that take Mosquitto's: a table, read word by word as Mosquitto reads it.

Loading Typer takes longer than publishing. Typer also takes a payload that begins with a dash for a flag, and
supports no flag with two, three or four words, such as `-D publish user-property NAME VALUE`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from roamcast.errors import InputError, did_you_mean

INDENT = 36
WIDTH = 110


class Flag(NamedTuple):
    names: tuple[str, ...]
    help: str
    metavar: str = ""
    """Name of the flag's value in the help; empty for a switch."""
    default: Any = None
    convert: Callable[[str], Any] = str
    """Convert the word to a value, or raise ValueError with a text that says what is valid."""
    is_repeatable: bool = False
    take: Callable[[str, list[str]], Any] | None = None
    """Takes the value of a flag with several words from the remaining words (in reverse order)."""

    @property
    def field(self) -> str:
        """Name of the value: the long flag without dashes."""
        return self.names[-1].lstrip("-").replace("-", "_")

    def initial(self) -> Any:
        """Default value."""
        if self.is_repeatable:
            return []
        return self.default if self.metavar else False


class Values(dict[str, Any]):
    """The values of all flags by name, given or default."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Command(NamedTuple):
    name: str
    summary: str
    """One line, then optional paragraphs."""
    flags: tuple[Flag, ...]
    absent: Mapping[str, str]
    """Flags of Mosquitto that are missing here, and what to use instead."""
    examples: tuple[str, ...]
    work: Callable[[Values], int]

    def run(self, words: Sequence[str]) -> int:
        """Run the command and return its exit code."""
        values = self.parse(words)
        if values is None:
            print(self.help())
            return 0
        return self.work(values)

    def parse(self, words: Sequence[str]) -> Values | None:
        """Parse the arguments; None if help is requested, InputError if they are invalid."""
        known = {name: flag for flag in self.flags for name in flag.names}
        values = Values({flag.field: flag.initial() for flag in self.flags})
        given = list(reversed(words))
        while given:
            word = given.pop()
            if word == "--help":
                return None
            name, equals, value = word.partition("=")
            if not equals or not word.startswith("--"):
                name, value = self._split_short(word, known)
            flag = known.get(name)
            if flag is None:
                raise self._unknown(name)
            if not flag.metavar:
                if value:
                    given.append(f"-{value}")
                _put(values, flag, True)
            elif flag.take is not None:
                given.extend([value] if value else [])
                _put(values, flag, flag.take(name, given))
            else:
                _put(values, flag, _converted(flag, name, value if value or equals else _next(given, name)))
        return values

    def _split_short(self, word: str, known: Mapping[str, Flag]) -> tuple[str, str]:
        """Split a short flag from its value (`-p1883`) or from other short flags (`-vN`)."""
        if word in known or word.startswith("--") or len(word) < 3 or word[:2] not in known:
            return word, ""
        return word[:2], word[2:]

    def _unknown(self, word: str) -> InputError:
        where = f"'roamcast {self.name}'"
        if not word.startswith("-") or word == "-":
            return InputError(f"{where}: unexpected argument {word!r}; see 'roamcast {self.name} --help'")
        if word in self.absent:
            return InputError(f"{where} has no {word}: {self.absent[word]}")
        names = [name for flag in self.flags for name in flag.names]
        known = did_you_mean(word, names) or f"see 'roamcast {self.name} --help'"
        return InputError(f"{where} has no option {word}; {known}")

    def help(self) -> str:
        first, _, rest = self.summary.partition("\n\n")
        lines = [f"Usage: roamcast {self.name} [OPTIONS]", "", f"  {first}", ""]
        if rest:
            lines += [*textwrap.wrap(rest, WIDTH, initial_indent="  ", subsequent_indent="  "), ""]
        lines.append("Options:")
        shown = [(f"{', '.join(flag.names)} {flag.metavar}".rstrip(), flag.help) for flag in self.flags]
        for names, text in [*shown, ("--help", "Show this help and exit.")]:
            body = textwrap.wrap(text, WIDTH - INDENT)
            if len(names) > INDENT - 4:
                lines.append(f"  {names}")
                names = ""
            lines.append(f"  {names:{INDENT - 4}}  {body[0]}")
            lines += [" " * INDENT + line for line in body[1:]]
        return "\n".join([*lines, "", "Examples:", *(f"  {example}" for example in self.examples)])


def _put(values: Values, flag: Flag, value: Any) -> None:
    if flag.is_repeatable:
        values[flag.field].append(value)
    else:
        values[flag.field] = value


def _next(given: list[str], name: str) -> str:
    if not given:
        raise InputError(f"option '{name}' requires an argument")
    return given.pop()


def _converted(flag: Flag, name: str, word: str) -> Any:
    try:
        return flag.convert(word)
    except ValueError as error:
        valid = str(error) if type(error) is ValueError and "literal" not in str(error) else ""
        raise InputError(f"{name} {word}: valid is {valid or flag.metavar.lower()}") from None


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    valid = f"a whole number from {low} to {high}" if high is not None else f"a whole number from {low} on"

    def convert(word: str) -> int:
        if not word.isascii() or not word.isdecimal() or not low <= int(word) <= (high or int(word)):
            raise ValueError(valid)
        return int(word)

    return convert


def number(low: float, high: float = math.inf) -> Callable[[str], float]:
    valid = f"a number from {low:g} on" if high == math.inf else f"a number from {low:g} to {high:g}"

    def convert(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not (low <= value <= high and math.isfinite(value)):
            raise ValueError(valid)
        return value

    return convert


def one_of(words: Mapping[str, Any]) -> Callable[[str], Any]:
    def convert(word: str) -> Any:
        if word not in words:
            raise ValueError(" or ".join(words))
        return words[word]

    return convert


# --- properties, as Mosquitto's -D gives them ---


class Property(NamedTuple):
    """A property of MQTT 5, and the packet type that it belongs to."""

    packet: str
    name: str
    value: Any


OF_A_MESSAGE: dict[str, Callable[[str], Any]] = {
    "content-type": str,
    "correlation-data": lambda word: word.encode("utf-8", "surrogateescape"),
    "message-expiry-interval": whole_number(0, 0xFFFF_FFFF),
    "payload-format-indicator": whole_number(0, 1),
    "response-topic": str,
}
PROPERTIES: dict[str, dict[str, Callable[[str], Any]]] = {
    "connect": {
        "maximum-packet-size": whole_number(1, 0xFFFF_FFFF),
        "receive-maximum": whole_number(1, 65_535),
        "session-expiry-interval": whole_number(0, 0xFFFF_FFFF),
    },
    "publish": OF_A_MESSAGE,
    "will": {**OF_A_MESSAGE, "will-delay-interval": whole_number(0, 0xFFFF_FFFF)},
    "subscribe": {"subscription-identifier": whole_number(1, 268_435_455)},
    "unsubscribe": {},
    "disconnect": {"session-expiry-interval": whole_number(0, 0xFFFF_FFFF)},
}
WITH_USER_PROPERTIES = ("connect", "publish", "will", "subscribe")
USER_PROPERTY = "user-property"


def take_property(flag: str, given: list[str]) -> Property:
    """Parse the words after `-D`: a packet, a property and its value; a user property has a name and a
    value."""
    shown = " ".join([flag, *reversed(given[-4:])])
    word = given.pop() if given else ""
    packet = word.lower()
    if flag == "--property" and packet not in PROPERTIES:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--property {word}: valid is NAME=VALUE, as in pm10=57")
        return Property("publish", USER_PROPERTY, (name, value))
    if packet not in PROPERTIES:
        packets = ", ".join(PROPERTIES)
        raise InputError(f"{shown}: valid is {flag} PACKET PROPERTY VALUE; packets are {packets}")
    known = [*PROPERTIES[packet], *([USER_PROPERTY] if packet in WITH_USER_PROPERTIES else [])]
    name = given.pop() if given else ""
    if name not in known:
        hint = did_you_mean(name, known) or f"there are: {', '.join(known) or 'none'}"
        raise InputError(f"{shown}: no such property of {packet.upper()}; {hint}")
    words = [given.pop() for _ in range(min(len(given), 2 if name == USER_PROPERTY else 1))]
    if len(words) < (2 if name == USER_PROPERTY else 1):
        raise InputError(f"{shown}: valid is {flag} {packet} {name} {'NAME ' * (name == USER_PROPERTY)}VALUE")
    if name == USER_PROPERTY:
        return Property(packet, name, (words[0], words[1]))
    try:
        return Property(packet, name, PROPERTIES[packet][name](words[0]))
    except ValueError as error:
        raise InputError(f"{shown}: valid is {error}") from None


def of_packet(properties: Sequence[Property], packet: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the properties for one kind of packet by name, and its user properties."""
    own = [one for one in properties if one.packet == packet]
    described = {one.name: one.value for one in own if one.name != USER_PROPERTY}
    return described, [one.value for one in own if one.name == USER_PROPERTY]
