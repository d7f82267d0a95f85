r"""Templates of `-o jsonpath=`, and paths of `--sort-by`: what users of kubectl paste.

As client-go's util/jsonpath reads them: text with ``{.items[*].name}``, ``{range .items[*]}...
{end}``, ``{"\n"}``, ``['key']``, ``[0]``, ``[-1]``, ``[0:2]``, and filters such as
``[?(@.state=="stuck")]``. Not ``..``, unions of ``[,]`` and steps of slices. What is missing is
empty (AllowMissingKeys).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from istio_aux.model.text import printable

Values = list[Any]
Step = Callable[[Any], Iterable[Any]]  # From one value to those that it leads to.

_TOKEN = re.compile(r"""\{((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^{}"'])*)\}|([^{}]+)|([{}])""")
_STEP = re.compile(
    r"""\.(?P<key>(?:[\w/-]|\\.)+)|(?P<all>\[\*\]|\.\*)|\[(?P<at>-?\d+)\]"""
    r"""|\[(?P<low>-?\d*):(?P<high>-?\d*)\]|\[(?P<quote>["'])(?P<named>.*?)(?P=quote)\]"""
    r"""|\[\?\(\s*@(?P<where>(?:\.(?:[\w/-]|\\.)+)+)\s*"""
    r"""(?:(?P<how>[=!<>]=|<|>)\s*(?P<than>"[^"]*"|'[^']*'|[\w.+-]+)\s*)?\)\]"""
)
_DEEPEST = 32  # Levels of ``range``.
_ESCAPED = re.compile(r"\\(.)")
_COMPARED = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


class Path(NamedTuple):
    """What stands in braces: steps from a value to others."""

    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> Path:
        """Read ``.a.b[0]``; ``$`` and ``@`` before it are the value itself. Raises ValueError."""
        text, at, steps = text.strip(), 0, list[Step]()
        body = text[1:] if text[:1] in {"$", "@"} else text
        while at < len(body):
            if not (found := _STEP.match(body, at)):
                raise ValueError(f"{text!r}: expected .KEY, [*], [NUMBER] or [?(@.KEY==VALUE)]"
                                 f" at {body[at:]!r}")  # fmt: skip
            steps.append(_step(found))
            at = found.end()
        return cls(tuple(steps))

    @classmethod
    def relaxed(cls, text: str) -> Path:
        """As `parse`, also without braces and a first dot, as kubectl takes --sort-by."""
        bare = text.strip().removeprefix("{").removesuffix("}")
        return cls.parse(bare if bare[:1] in {".", "[", "$", "@"} else f".{bare}")

    def of(self, value: object) -> Values:
        """The values to which it leads."""
        found: Values = [value]
        for step in self.steps:
            found = [each for one in found for each in step(one)]
        return found


class Template(NamedTuple):
    """Text, paths, and for a ``range`` its path and what is repeated."""

    parts: tuple[str | Path | tuple[Path, Template], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Read a template. Raises ValueError: what is wrong, and where."""
        stack: list[tuple[Path | None, list[Any]]] = [(None, [])]
        for found in _TOKEN.finditer(text):
            action, plain, brace = found.groups()
            words = (action or "").strip()
            if brace:
                raise ValueError(f"{text[found.start():]!r}: no }} for this {brace}"
                                 if brace == "{" else f"{text!r}: no {{ for a }}")  # fmt: skip
            if plain is not None:
                stack[-1][1].append(plain)
            elif words[:1] in {'"', "'"}:
                stack[-1][1].append(_unquoted(words))
            elif words == "range" or words.startswith(("range ", "range.")):
                if len(stack) > _DEEPEST:
                    raise ValueError(f"expected at most {_DEEPEST} {{range}} in one another")
                stack.append((Path.parse(words.removeprefix("range")), []))
            elif words == "end":
                path, parts = stack.pop()
                if path is None:
                    raise ValueError("{end} without {range}")
                stack[-1][1].append((path, cls(tuple(parts))))
            else:
                stack[-1][1].append(Path.parse(words))
        if len(stack) > 1:
            raise ValueError("{range} without {end}")
        return cls(tuple(stack[0][1]))

    def render(self, value: object) -> str:
        """Fill in what is known; texts of tenants are escaped."""
        return "".join(self._rendered(value))

    def _rendered(self, value: object) -> Iterator[str]:
        for part in self.parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, Path):
                yield " ".join(map(_shown, part.of(value)))
            else:
                path, repeated = part
                for each in path.of(value):
                    yield repeated.render(each)


def _step(found: re.Match[str]) -> Step:
    if found["all"]:
        return _items
    if found["at"]:
        at = int(found["at"])
        return partial(_slice, slice(at, at + 1 or None))
    if found["low"] is not None:
        return partial(
            _slice, slice(*(int(each) if each else None for each in found.group("low", "high")))
        )
    if found["where"]:
        path = Path.parse(found["where"])
        return partial(_filtered, path, _COMPARED.get(found["how"] or ""), _literal(found["than"]))
    key = found["named"] if found["quote"] else _ESCAPED.sub(r"\1", found["key"])
    return partial(_child, key)


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> Values:
    return cast("Values", value) if isinstance(value, list) else []


def _items(value: object) -> Iterable[Any]:
    return [*_object(value).values(), *_list(value)]


def _slice(which: slice, value: object) -> Iterable[Any]:
    return _list(value)[which]


def _child(key: str, value: object) -> Iterable[Any]:
    known = _object(value)
    return [known[key]] if key in known else []


def _filtered(
    path: Path, compared: Callable[[Any, Any], bool] | None, than: object, value: object
) -> Iterator[Any]:
    for each in _list(value):
        for found in path.of(each):
            numbers = isinstance(found, int | float) and isinstance(than, int | float)
            alike = numbers or (isinstance(found, str) and isinstance(than, str))
            if compared is None or (alike and compared(found, than)):
                yield each
                break


def _literal(text: str | None) -> object:
    if text is None or text[:1] in {'"', "'"}:
        return text and text[1:-1]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _unquoted(text: str) -> str:
    if len(text) < 2 or text[0] != text[-1]:
        raise ValueError(f"{text}: a quoted text ends in another way than it begins")
    known = {"n": "\n", "t": "\t", "r": "\r"}
    return _ESCAPED.sub(lambda found: known.get(found[1], found[1]), text[1:-1])


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return printable(text)
