"""Chat templates: jinja2 in its sandbox with the names that Hugging Face's `apply_chat_template` offers.

A template's control tokens (`<|im_start|>`) and a message that merely spells one look alike once rendered. Messages
are therefore marked before rendering: each control token in them is put between two private-use characters, which
the encoder takes out again, reading what stands between them as plain text.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

MARK_START, MARK_END = "\U000f0000", "\U000f0001"

# For base models: no tokens of its own, and a question form they have read often.
PLAIN = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Answer: ' + message['content'] + '\n\n' }}"
    "{% else %}{{ 'Question: ' + message['content'] + '\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    special_tokens: Mapping[str, str],
    options: Mapping[str, Any],
) -> str:
    """The conversation as text. `special_tokens` are bos_token and the like, `options` a template's own switches.

    Raises ValueError with the template's own words if it refuses the conversation or has a fault.
    """
    values = {"tools": None, "documents": None, **special_tokens, **options}
    try:
        return _compile(template).render(
            messages=[dict(m) for m in messages], add_generation_prompt=add_generation_prompt, **values
        )
    except (jinja2.TemplateError, TypeError, KeyError, AttributeError, OverflowError) as error:
        roles = ", ".join(str(m.get("role")) for m in messages)
        reason = str(error).rstrip(".")
        raise ValueError(f"The chat template can't render the roles {roles}: {reason}.") from error


def mark(messages: Iterable[Mapping[str, Any]], tokens: re.Pattern) -> list[dict[str, Any]]:
    """Copies of the messages with every control token in a text put between marks; marks already there are dropped."""

    def marked(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = value.replace(MARK_START, "").replace(MARK_END, "")
        return tokens.sub(f"{MARK_START}\\g<0>{MARK_END}", value)

    return [{key: marked(value) for key, value in message.items()} for message in messages]


def split_marks(text: str, tokens: re.Pattern) -> list[tuple[str, bool]]:
    """Splits rendered text into (piece, is it a marked token). Marks that a template tore apart are dropped."""
    pieces = re.split(f"{MARK_START}({tokens.pattern}){MARK_END}|[{MARK_START}{MARK_END}]", text)
    return [(piece, i % 2 == 1) for i, piece in enumerate(pieces) if piece]


def any_of(texts: Iterable[str]) -> re.Pattern:
    """A pattern of any of the texts, longer ones first; of nothing if there are none."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


@functools.lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(template)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # jinja's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Generation(jinja2.ext.Extension):
    """Accepts `{% generation %} ... {% endgeneration %}`, which some templates put around answers, as plain text."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)
