"""The text of an action in a story: a verb, required words, and options. One table reads and writes it.

b0 detour b1 3          the fields `peer` and `factor`
c0 attach b0 clean      the flag `clean`
c0 publish a/1 qos 2    the option `qos`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from roamcast.errors import InputError

NONE_WORD = "none"
_NO_WORDS: Mapping[str, str] = MappingProxyType({})


class Verb(NamedTuple):
    kind: type[Any]
    needs: tuple[str, ...] = ()
    """Fields that take one word each, in this order; those at the end may have defaults."""
    flags: Mapping[str, str] = _NO_WORDS
    """Words that make a field true."""
    options: Mapping[str, str] = _NO_WORDS
    """Words that are followed by the value of a field."""

    @classmethod
    def of(cls, kind: type[Any]) -> Verb:
        """The verb of a struct whose fields say everything: each takes a word; a truth value is a flag."""
        fields = msgspec.structs.fields(kind)
        flags = {one.name.removeprefix("is_"): one.name for one in fields if one.type is bool}
        return cls(kind, tuple(one.name for one in fields if one.type is not bool), flags)

    def read(self, verb: str, text: str, **found: Any) -> Any:
        """Parse the words after the verb; `found` holds fields that the caller has parsed."""
        fields = {field.name: field for field in msgspec.structs.fields(self.kind)}
        words = text.split()
        for name in self.needs:
            if words and words[0] not in self.flags:
                found[name] = value_of(f"{verb} {name}", words.pop(0).strip("'"), fields[name].type)
            elif fields[name].required:
                raise InputError(f"{verb} {text!r}: expected {verb} {' '.join(self.needs).upper()}")
        while words:
            word = words.pop(0)
            if word in self.flags:
                found[self.flags[word]] = True
            elif word in self.options and words:
                name = self.options[word]
                found[name] = value_of(f"{verb} {word}", words.pop(0), fields[name].type)
            else:
                valid = ", ".join((*self.flags, *self.options)) or "no more words"
                raise InputError(f"{verb}: {word!r} is not known; valid are {valid}")
        if not 0 <= found.get("qos", 0) <= 2:
            raise InputError(f"qos {found['qos']}: valid are 0, 1 and 2")
        return self.kind(**found)

    def write(self, verb: str, item: Any) -> str:
        """Format the action; fields at their defaults are left out."""
        defaults = {field.name: field.default for field in msgspec.structs.fields(self.kind)}
        values = {name: getattr(item, name) for name in defaults if getattr(item, name) != defaults[name]}
        words = [verb, *(quoted(told(values[name])) for name in self.needs if name in values)]
        words += [word for word, name in self.flags.items() if name in values]
        words += [f"{word} {told(values[name])}" for word, name in self.options.items() if name in values]
        return " ".join(words).lstrip()


class Phrase(NamedTuple):
    """An action with its own functions for the words after the verb."""

    kind: type[Any]
    reads: Callable[[str], Any]
    writes: Callable[[Any], str]

    def read(self, verb: str, text: str) -> Any:
        return self.reads(text)

    def write(self, verb: str, item: Any) -> str:
        return f"{verb} {self.writes(item)}".rstrip()


def quoted(word: str) -> str:
    """A word that begins with `#` would begin a comment."""
    return f"'{word}'" if word.startswith("#") else word


def told(value: Any) -> str:
    return NONE_WORD if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def value_of(what: str, word: str, kind: Any) -> Any:
    """Convert a word to the type of a field."""
    is_number = word.lstrip("-").isdigit() and kind is not str
    value = None if word == NONE_WORD else int(word) if is_number else word
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        choices = ", ".join(map(str, _choices(kind)))
        raise InputError(f"{what} {word!r}: {f'valid are {choices}' if choices else error}") from None


def _choices(kind: Any) -> list[Any]:
    """The values of a literal type, also as a part of another type."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [one for part in get_args(kind) for one in _choices(part)]


class Lines:
    """Settings of a story that are fields of a struct, one line each: `queue_max 3`, `cache_ttl_s none`."""

    def __init__(self, kind: type[Any], *without: str) -> None:
        self.fields = {one.name: one for one in msgspec.structs.fields(kind) if one.name not in without}

    def read(self, settings: Any, name: str, text: str) -> Any:
        return msgspec.structs.replace(settings, **{name: value_of(name, text, self.fields[name].type)})

    def write(self, settings: Any) -> Iterator[str]:
        """Write the settings that are not at their defaults."""
        for name, field in self.fields.items():
            value = getattr(settings, name)
            if value != field.default:
                yield f"{name} {NONE_WORD if value is None else value}"

    def at_default(self, settings: Any, name: str) -> Any:
        return msgspec.structs.replace(settings, **{name: self.fields[name].default})
