"""Patterns over strings: SQL `LIKE` and MQTT topic filters.

Both are compiled to the same small machine: a row of items, each of which
consumes one given character, any one character, any run of characters, or any
run without a slash. The machine's state is an integer with one bit per item,
so a step is a few bit operations. Matching a notification does not use the
machine (a regular expression is faster); the covering algebra does, because
machines can be run side by side to find a string that some patterns accept and
others refuse, or to show that there is none.
"""

import re
from collections.abc import Callable
from enum import Enum

from roamcast.errors import InputError

MAX_TOPIC_BYTES = 65_535


class Wild(Enum):
    ONE = "any one character"
    RUN = "any run of characters"
    LEVEL = "any run of characters without a slash"


Item = str | Wild


class Pattern:
    """A pattern as a machine. Two patterns with the same `key` accept the same strings."""

    __slots__ = (
        "_accepting",
        "_by_character",
        "_guarded",
        "_is_built",
        "_level",
        "_one",
        "_run",
        "_search",
        "key",
        "prefix",
    )

    def __init__(self, key: tuple[str, str], prefix: str, *, guarded: bool = False) -> None:
        self.key = key
        self.prefix = prefix
        """Prefix of every string that the pattern accepts."""
        self._search: Callable[[str], object] | None = None
        self._guarded = guarded
        # Most patterns are never compared with others, so their machines are built on demand.
        self._is_built = False
        self._accepting = self._one = self._run = self._level = 0
        self._by_character: dict[str, int] = {}

    def _machine(self) -> tuple[list[Item], int | None]:
        """Return the row of items, and a position before the end where the pattern accepts, too."""
        raise NotImplementedError

    def _build(self) -> None:
        items, also_accepting_at = self._machine()
        self._is_built = True
        self._accepting = 1 << len(items)
        if also_accepting_at is not None:
            self._accepting |= 1 << also_accepting_at
        for position, item in enumerate(items):
            bit = 1 << position
            if item is Wild.ONE:
                self._one |= bit
            elif item is Wild.RUN:
                self._run |= bit
            elif item is Wild.LEVEL:
                self._level |= bit
            elif isinstance(item, str):
                self._by_character[item] = self._by_character.get(item, 0) | bit

    @property
    def characters(self) -> frozenset[str]:
        if not self._is_built:
            self._build()
        return frozenset(self._by_character)

    @property
    def search(self) -> Callable[[str], object]:
        """Return a function that returns None for strings that do not match."""
        if self._search is None:
            self._search = self._new_search()
        return self._search

    def _new_search(self) -> Callable[[str], object]:
        raise NotImplementedError

    def accepts(self, text: str) -> bool:
        return self.search(text) is not None

    # The machine: state -1 is "nothing read yet" (a leading wildcard refuses `$`), 0 is "no match possible".

    def start(self) -> int:
        if not self._is_built:
            self._build()
        return -1 if self._guarded else self._closed(1)

    def step(self, state: int, character: str) -> int:
        if state == -1:
            if character == "$":
                return 0
            state = self._closed(1)
        moving = self._one | self._by_character.get(character, 0)
        staying = self._run if character == "/" else self._run | self._level
        return self._closed((state & moving) << 1 | state & staying)

    def accepting(self, state: int) -> bool:
        if state == -1:
            state = self._closed(1)
        return bool(state & self._accepting)

    def _closed(self, state: int) -> int:
        """A run may be empty, so a state before it is also behind it."""
        runs = self._run | self._level
        while True:
            further = state | (state & runs) << 1
            if further == state:
                return state
            state = further


class LikePattern(Pattern):
    """`LIKE`: `%` stands for any run of characters, `_` for any one."""

    __slots__ = ("escaped", "items", "literal", "text")

    def __init__(self, items: list[Item]) -> None:
        self.items = _tidied(items)
        self.literal = "".join(map(str, self.items)) if all(isinstance(i, str) for i in self.items) else None
        self.escaped = any(item in ("%", "_") for item in self.items)
        self.text = "".join(map(self._item_text, self.items))
        key = ("like", ("e" if self.escaped else "p") + self.text)
        fixed = next((i for i, item in enumerate(self.items) if not isinstance(item, str)), len(self.items))
        super().__init__(key, "".join(map(str, self.items[:fixed])))

    def _machine(self) -> tuple[list[Item], int | None]:
        return self.items, None

    def _new_search(self) -> Callable[[str], object]:
        # Compiling takes longer than all other parsing, and many patterns (prefixes) never need it.
        return re.compile(self._regular_expression(), re.DOTALL).fullmatch

    def _regular_expression(self) -> str:
        """Return a regular expression that cannot backtrack far.

        Between two `%` the leftmost place where a segment fits is as good as any
        other, so it may be atomic: no selector can make matching blow up.
        """
        segments: list[str] = [""]
        for item in self.items:
            if item is Wild.RUN:
                segments.append("")
            else:
                segments[-1] += "." if item is Wild.ONE else re.escape(str(item))
        first, *middle = segments
        if not middle:
            return first
        *middle, last = middle
        # The last segment is anchored at the end: `.*` goes there and walks back once at most.
        return first + "".join(f"(?>.*?{segment})" for segment in middle) + f".*{last}"

    def _item_text(self, item: Item) -> str:
        if item is Wild.RUN:
            return "%"
        if item is Wild.ONE:
            return "_"
        assert isinstance(item, str)
        return "\\" + item if self.escaped and item in "%_\\" else item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LikePattern) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def parse_like(text: str, escape: str | None = None) -> LikePattern:
    if escape is not None and len(escape) != 1:
        raise InputError(f"ESCAPE needs exactly one character, got {escape!r}")
    items: list[Item] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in ("%", "_", escape):
                raise InputError(
                    f"in LIKE pattern {text!r} the escape character {escape!r} must be followed by"
                    f" '%', '_' or itself"
                )
            items.append(following)
        elif character == "%":
            items.append(Wild.RUN)
        elif character == "_":
            items.append(Wild.ONE)
        else:
            items.append(character)
    return LikePattern(items)


def _tidied(items: list[Item]) -> list[Item]:
    """`%%` means `%`, and `%_` means `_%`: use one spelling for each meaning."""
    tidy: list[Item] = []
    for item in items:
        if item is Wild.ONE and tidy and tidy[-1] is Wild.RUN:
            tidy.insert(len(tidy) - 1, item)
        elif not (item is Wild.RUN and tidy and tidy[-1] is Wild.RUN):
            tidy.append(item)
    return tidy


class TopicPattern(Pattern):
    """An MQTT topic filter: `+` matches one level, a final `#` all following levels, including none."""

    __slots__ = ("has_wildcard", "levels", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.levels = tuple(text.split("/"))
        _check_topic_filter(text, self.levels)
        self.has_wildcard = "+" in self.levels or self.levels[-1] == "#"
        fixed = next((i for i, level in enumerate(self.levels) if level in ("+", "#")), len(self.levels))
        prefix = "/".join(self.levels[:fixed])
        if fixed and fixed < len(self.levels) and self.levels[fixed] == "+":
            prefix += "/"
        # MQTT 4.7.2: a filter that starts with a wildcard does not match topics that start with `$`.
        super().__init__(("topic", text), prefix, guarded=fixed == 0)

    def _machine(self) -> tuple[list[Item], int | None]:
        items: list[Item] = []
        end: int | None = None
        for number, level in enumerate(self.levels):
            if level == "#":
                end = len(items) if number else None
                items += ["/", Wild.RUN] if number else [Wild.RUN]
                continue
            if number:
                items.append("/")
            if level == "+":
                items.append(Wild.LEVEL)
            else:
                items += level
        return items, end

    def contains(self, other: "TopicPattern") -> bool:
        """True if every topic that the other matches matches this one, decided by the levels alone."""
        wide, narrow = self.levels, other.levels
        if self._guarded and narrow[0].startswith("$"):
            return False
        if narrow == ("#",):
            # Every topic has one level at least.
            return wide in (("#",), ("+", "#"))
        for place, level in enumerate(wide):
            if level == "#":
                return True
            if place == len(narrow) or narrow[place] == "#" or level not in ("+", narrow[place]):
                return False
        return len(narrow) == len(wide)

    def _new_search(self) -> Callable[[str], object]:
        """Compare levels: compiling a regular expression would take longer than most filters live."""
        is_open = self.levels[-1] == "#"
        levels = self.levels[:-1] if is_open else self.levels
        count, guarded = len(levels), self._guarded

        def search(topic: str) -> object:
            parts = topic.split("/", count)
            if len(parts) != count and (len(parts) < count or not is_open):
                return None
            if guarded and topic.startswith("$"):
                return None
            for level, part in zip(levels, parts, strict=False):
                if level not in (part, "+"):
                    return None
            return topic

        return search

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.key)


def _check_topic_filter(text: str, levels: tuple[str, ...]) -> None:
    what = f"topic filter {text!r}"
    if not text:
        raise InputError("topic filter '' is empty: expected at least one character")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TOPIC_BYTES:
        raise InputError(f"topic filter is too long: expected at most {MAX_TOPIC_BYTES} bytes of UTF-8")
    if "\0" in text:
        raise InputError(f"{what}, position {text.index(chr(0)) + 1}: a null character is not allowed")
    position = 1
    for number, level in enumerate(levels):
        if "#" in level and (level != "#" or number != len(levels) - 1):
            raise InputError(
                f"{what}, position {position + level.index('#')}: '#' must be the whole last level"
            )
        if "+" in level and level != "+":
            raise InputError(f"{what}, position {position + level.index('+')}: '+' must be a whole level")
        position += len(level) + 1
