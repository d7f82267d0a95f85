"""Jinja templates as Helm's Go templates, for the few things that `src/templates` uses.

Every value is written as JSON, as the charm's own renderer does. A mapping that is looped over is a
list of pairs here: Go sorts the keys of its maps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from jinja2 import Environment, nodes


class UnknownSyntaxError(ValueError):
    """The template uses syntax that has no translation yet."""


def translate(source: str) -> str:
    """A Jinja template as the text of a Go template, whose variables are fields of `$c`.

    Raises:
        UnknownSyntaxError: the template uses something else than names, attributes, texts, lists,
            `~`, `string`, `if` without `else`, and `for`.
    """
    parsed = Environment(trim_blocks=True, autoescape=False).parse(source)
    return "".join(_statements(parsed.body, frozenset()))


def _statements(body: Iterable[nodes.Node], local: frozenset[str]) -> Iterable[str]:
    for node in body:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    if isinstance(part, nodes.TemplateData):
                        yield part.data
                    else:
                        yield f"{{{{ {_expression(part, local)} | toRawJson }}}}"
            case nodes.If(elif_=[], else_=[]):
                yield f"{{{{- if {_expression(node.test, local)} }}}}\n"
                yield from _statements(node.body, local)
                yield "{{- end }}\n"
            case nodes.For(target=nodes.Name() as target):
                yield f"{{{{- range ${target.name} := {_expression(node.iter, local)} }}}}\n"
                yield from _statements(node.body, local | {target.name})
                yield "{{- end }}\n"
            case nodes.For(target=nodes.Tuple() as target, iter=nodes.Call() as call):
                names = [name.name for name in target.items if isinstance(name, nodes.Name)]
                yield f"{{{{- range $pair := {_pairs(call, local)} }}}}\n"
                for index, name in enumerate(names):
                    yield f"{{{{- ${name} := index $pair {index} }}}}\n"
                yield from _statements(node.body, local | {*names})
                yield "{{- end }}\n"
            case _:
                raise UnknownSyntaxError(f"line {node.lineno}: {type(node).__name__}")


def _pairs(call: nodes.Call, local: frozenset[str]) -> str:
    method = call.node
    if isinstance(method, nodes.Getattr) and method.attr == "items":
        return _expression(method.node, local)
    raise UnknownSyntaxError(f"line {call.lineno}: a call of something else than items()")


def _expression(node: nodes.Node, local: frozenset[str]) -> str:
    match node:
        case nodes.Name(name=name):
            return f"${name}" if name in local else f"$c.{name}"
        case nodes.Const(value=value):
            return json.dumps(value)
        case nodes.Getattr(node=owner, attr=attribute):
            return f"{_expression(owner, local)}.{attribute}"
        case nodes.Concat(nodes=parts):
            return f"(print {' '.join(_expression(part, local) for part in parts)})"
        case nodes.Filter(name="string", node=nodes.Node() as value):
            return f"(toString {_expression(value, local)})"
        case nodes.List(items=items):
            return f"(list {' '.join(_expression(item, local) for item in items)})"
        case _:
            raise UnknownSyntaxError(f"line {node.lineno}: {type(node).__name__}")
