"""Names of configs: a config's fields as words, and back. One grammar serves names, parsing and filters.

A field is a pattern with its attributes, such as `t{design.tile_m}x{design.tile_n}`. The types of the attributes decide
their spelling: a number, `MxNxK` of a tuple, the value of an enumeration, `auto` of None. Other values have words.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from operator import attrgetter
from string import Formatter
from typing import Any

from gemmill.family.tensor import any_of
from gemmill.vocab import Arch

_REQUIRED: Any = object()
_AUTO = "auto"
_ATTRIBUTE = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True)
class Spelling:
    """The spelling of an attribute's values."""

    regex: str
    """Of all texts, without groups."""
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    wanted: str
    """The texts in words, `{}` for the letters before them."""


def words(text_of: Mapping[Any, str]) -> Spelling:
    """Values that have a word each; it may be empty."""
    value_of = {text: value for value, text in text_of.items()}
    longest_first = sorted(value_of, key=len, reverse=True)
    wanted = any_of([f"{{}}{text}" if text else "nothing" for text in text_of.values()])
    return Spelling("|".join(map(re.escape, longest_first)), text_of.__getitem__, value_of.__getitem__, wanted)


def number_after(letters: str) -> Spelling:
    """A number after letters; 0 leaves no text."""
    return Spelling(
        rf"(?:{letters}[1-9]\d*)?",
        lambda value: f"{letters}{value}" if value else "",
        lambda text: int(text.removeprefix(letters) or 0),
        f"{letters} and a number or nothing",
    )


def _without_none(kind: Any) -> Any:
    """The type of an attribute where it is not None."""
    (inner,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    return inner


def _spelling_of(kind: Any) -> Spelling:
    if isinstance(kind, types.UnionType):
        of = _spelling_of(_without_none(kind))
        return Spelling(
            f"{_AUTO}|{of.regex}",
            lambda value: _AUTO if value is None else of.write(value),
            lambda text: None if text == _AUTO else of.read(text),
            f"{{}}{_AUTO} or {of.wanted}",
        )
    if kind is int:
        return Spelling(r"0|[1-9]\d*", str, int, "{} and a number")
    if typing.get_origin(kind) is tuple:
        count = len(typing.get_args(kind))
        return Spelling(
            "x".join([r"\d+"] * count),
            lambda value: "x".join(map(str, value)),
            lambda text: tuple(map(int, text.split("x"))),
            "{}" + "x".join("MNK"[:count]),
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return words({member: str(member.value) for member in kind})
    raise TypeError(f"{kind} has no spelling in a name: give one for its values")


@dataclass(frozen=True)
class Field:
    """One word of a name."""

    pattern: str
    """Letters, and attributes of the config in braces."""
    default: Any = _REQUIRED
    """The value at which the field leaves no text, or one of `instead`; a tuple for several attributes."""
    instead: tuple[str, ...] = ()
    """The words that stand for the default."""
    which: Callable[[Any], str] | None = None
    """Which of several such words a config has."""
    spelled: Mapping[str, Spelling] = field(default_factory=dict)
    """Spellings of attributes whose types do not decide it."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Values of other attributes with which alone the field is in a name, which therefore implies them."""

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The attributes of the field."""
        return tuple(path for _, path, _, _ in Formatter().parse(self.pattern) if path)

    @property
    def label(self) -> str:
        """The last of its attributes, as sentences call it."""
        return self.paths[-1].rpartition(".")[2]

    @property
    def is_optional(self) -> bool:
        """Whether it can leave no text."""
        return bool(self.only) or (self.default is not _REQUIRED and not self.instead)

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of each attribute; none where the field has no default."""
        if self.default is _REQUIRED:
            return {}
        return dict(zip(self.paths, self.default if len(self.paths) > 1 else (self.default,), strict=True))


def mark(word: str, path: str) -> Field:
    """A word that stands in the name where an attribute is true."""
    return Field(f"{{{path}}}", default=False, spelled={path: words({True: word})})


@dataclass(frozen=True)
class _Compiled:
    """A field, and the spellings of its attributes."""

    field: Field
    spellings: tuple[Spelling, ...]

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        parts = iter(self.spellings)
        letters = (re.escape(text) + (f"({next(parts).regex})" if path else "") for text, path in self._parts())
        return re.compile("".join(letters))

    @property
    def wanted(self) -> str:
        """The words of the field, in words."""
        parts = iter(self.spellings)
        told = ", ".join(
            next(parts).wanted.replace("{}", text).removeprefix(" and ") for text, path in self._parts() if path
        )
        return " or ".join((*self.field.instead, told))

    def _parts(self) -> Iterator[tuple[str, str | None]]:
        return ((text, path) for text, path, _, _ in Formatter().parse(self.field.pattern))

    def text(self, config: Any) -> str:
        """The word of a config; empty where the field leaves none."""
        if any(attrgetter(path)(config) != value for path, value in self.field.only.items()):
            return ""
        values = {path: attrgetter(path)(config) for path in self.field.paths}
        if values == self.field.defaults:
            return self.field.which(config) if self.field.which else "".join(self.field.instead)
        texts = (spelling.write(value) for spelling, value in zip(self.spellings, values.values(), strict=True))
        return _ATTRIBUTE.sub(lambda _: next(texts), self.field.pattern)

    def values(self, word: str) -> dict[str, Any] | None:
        """The attributes that a word gives; None where the word is no word of this field."""
        if word in self.field.instead:
            return self.field.defaults
        if (match := self._regex.fullmatch(word)) is None:
            return None
        found = (spelling.read(text) for spelling, text in zip(self.spellings, match.groups(), strict=True))
        return dict(zip(self.field.paths, found, strict=True)) | dict(self.field.only)


@dataclass(frozen=True, kw_only=True)
class Former:
    """The grammar of a former tag's names."""

    told: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that such a tag implies, in place of fields."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that every name of the tag has, and its fields give."""
    fields: tuple[Field, ...] = ()
    """The fields of its names; by default today's without those that the tag implies."""


@dataclass(frozen=True)
class Grammar:
    """Names of the configs of one type: a frozen dataclass, whose parts may be frozen dataclasses too."""

    config: type[Any]
    fields: tuple[Field, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that the tag implies."""
    aliases: Mapping[str, Former] = field(default_factory=dict)
    """Tags of former names."""

    @cached_property
    def _compiled(self) -> dict[str, tuple[_Compiled, ...]]:
        """The fields in a name, by former tags; today's by an empty one."""
        of_tag = {"": self.fields} | {
            tag: former.fields or tuple(one for one in self.fields if not former.told.keys() & set(one.paths))
            for tag, former in self.aliases.items()
        }
        return {tag: tuple(map(self._of, fields)) for tag, fields in of_tag.items()}

    def _of(self, told: Field) -> _Compiled:
        spellings = (told.spelled[x] if x in told.spelled else _spelling_of(self._kind_of(told, x)) for x in told.paths)
        return _Compiled(told, tuple(spellings))

    def _kind_of(self, told: Field, path: str) -> Any:
        """The type of an attribute where the field leaves text: None, the default, leaves none."""
        kind = self._kind(path)
        return _without_none(kind) if told.default is None else kind

    def _kind(self, path: str) -> Any:
        kind: Any = self.config
        for name in path.split("."):
            kind = typing.get_type_hints(kind)[name]
        return kind

    def words(self, config: Any, tag: str = "") -> list[str]:
        """The fields of a config's name after architecture and tag; `tag` selects the spelling of a former tag."""
        fields = self._compiled[tag if tag in self.aliases else ""]
        return [text for one in fields if (text := one.text(config))]

    def parse(self, arch: Arch, tag: str, words: Sequence[str]) -> Any:
        """The config of a name. Raises ValueError, naming the field that cannot be read."""
        former = self.aliases.get(tag)
        values: dict[str, Any] = {"arch": arch, **self.fixed, **(former.told if former else {})}
        rest = list(words)
        passed: list[str] = []  # fields before the next word that it may be instead
        for one in self._compiled[tag if former else ""]:
            if rest and (found := one.values(rest[0])) is not None:
                del rest[0]
                passed.clear()
                values |= found
                continue
            passed.append(one.wanted)
            if not one.field.is_optional:
                told = f"{one.field.label} {rest[0]!r}" if rest else f"it ends before {one.field.label}"
                raise ValueError(f"{told}, expected {'; or '.join(passed)}")
            values |= one.field.defaults
        if rest:
            raise ValueError(f"field {rest[0]!r}, expected {'; or '.join((*passed, 'nothing more'))}")
        for path, wanted in former.only.items() if former else ():
            if values[path] != wanted:
                raise ValueError(f"names of {tag} have {path.rpartition('.')[2]}={wanted}, not {values[path]}")
        return self._made(values)

    def _made(self, values: Mapping[str, Any]) -> Any:
        hints = typing.get_type_hints(self.config)
        told = {name: value for name, value in values.items() if "." not in name}
        for part in self._parts:
            own = {path.partition(".")[2]: value for path, value in values.items() if path.startswith(f"{part}.")}
            told[part] = hints[part](**own)
        if lacking := [x.name for x in dataclasses.fields(self.config) if x.name not in told and _is_required(x)]:
            raise ValueError(f"it does not tell {', '.join(lacking)}")
        return self.config(**told)

    @cached_property
    def _parts(self) -> list[str]:
        """Attributes that are dataclasses whose own attributes appear in names."""
        paths = (path.partition(".") for one in self.fields for path in one.paths)
        return list(dict.fromkeys(part for part, dot, _ in paths if dot))

    def filters(self, config: Any) -> dict[str, Any]:
        """The attributes of a config and of its parts, by the names of `--filter name=value`."""
        told: dict[str, Any] = {}
        for own in dataclasses.fields(self.config):
            value = getattr(config, own.name)
            is_part = own.name in self._parts
            told |= (
                {x.name: getattr(value, x.name) for x in dataclasses.fields(value)} if is_part else {own.name: value}
            )
        return told | ({"backend": config.backend} if hasattr(config, "backend") else {})


def _is_required(told: dataclasses.Field[Any]) -> bool:
    return told.default is dataclasses.MISSING and told.default_factory is dataclasses.MISSING
