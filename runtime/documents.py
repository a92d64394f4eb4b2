"""Request documents, JSON or YAML, read strictly: a fault names its file, line, column and, where known, its field."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

from hotfire.runtime.errors import ValidationError

_HINT = "Give one CreateTrainingJob request, as `aws sagemaker create-training-job --cli-input-json` takes it."
_KEY = r'"((?:[^"\\]|\\.)*)"\s*:'


def load_text(text: str, source_name: str) -> dict[str, Any]:
    """The document in ``text``: JSON when it begins with a brace or is named ``*.json``, else YAML.

    Duplicate keys are refused, because the two readers of such a document may disagree. ``source_name`` is only for
    messages.

    Raises:
        ValidationError: not JSON or YAML, a duplicate key, or something else than one object at the top.
    """
    text = text.removeprefix("\ufeff")
    as_json = text.lstrip().startswith("{") or source_name.lower().endswith(".json")
    try:
        document = _load_json(text, source_name) if as_json else _load_yaml(text, source_name)
    except RecursionError:
        raise ValidationError(f"{source_name} is nested too deeply to be read.", do=_HINT) from None
    if not isinstance(document, dict):
        found = "nothing" if document is None else f"a {type(document).__name__}"
        raise ValidationError(f"{source_name} holds {found} instead of an object.", do=_HINT)
    return document


def _load_json(text: str, source_name: str) -> Any:
    duplicates: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            duplicates.extend(name for name in found if names.count(name) > 1)
        return found

    def no_constant(name: str) -> Any:
        line, column = _position(text, _constant(text, name))
        raise ValidationError(
            f"{source_name}:{line}:{column}: {name} is not JSON.", do="Write it as a string."
        )

    try:
        document = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise ValidationError(
            f"{source_name}:{error.lineno}:{error.colno}: not JSON: {error.msg}"
            f"{_after_field(text[: error.pos])}.",
            do=_json_advice(text, error.pos),
        ) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise ValidationError(f"{source_name}: not JSON: {error}.", do=_HINT) from None
    if duplicates:
        line, column = _position(text, _last_key(text, duplicates[0]))
        raise _duplicate(source_name, line, column, duplicates[0])
    return document


def _last_key(text: str, name: str) -> int:
    """Offset of the last key of that name, outside of strings; the start of the text if it is spelt with escapes."""
    found = 0
    for token in re.finditer(r'"((?:[^"\\]|\\.)*)"(\s*:)?', text):
        if token[2] and token[1] == name:
            found = token.start()
    return found


def _constant(text: str, name: str) -> int:
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN', text):
        if token[0] == name:
            return token.start()
    return 0


def _after_field(before: str) -> str:
    """`` (after "InstanceCount")``: the last key before the fault, which is nearly always the field that is wrong."""
    keys = re.findall(_KEY, before[-4096:])
    return f' (at or after field "{keys[-1]}")' if keys else ""


def _json_advice(text: str, position: int) -> str:
    before, after = text[:position].rstrip(), text[position : position + 1]
    if before.endswith(",") and after in ("}", "]"):
        return f"Remove the comma before the closing {after}."
    if after == "'":
        return "JSON strings take double quotes."
    if after == "#" or text[position : position + 2] in ("//", "/*"):
        return "JSON has no comments; YAML does."
    return _HINT


def _position(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1


def _duplicate(source_name: str, line: int, column: int, name: Hashable) -> ValidationError:
    return ValidationError(
        f'{source_name}:{line}:{column}: field "{name}" is given twice.',
        do="Keep one of the two.",
    )


def _load_yaml(text: str, source_name: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe, and strict about keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        mark = key.start_mark
                        raise _duplicate(source_name, mark.line + 1, mark.column + 1, key.value)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    loader = None
    try:
        # The constructor already reads, so a character that YAML forbids is found there.
        loader = Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "cannot be read"
        raise ValidationError(
            f"{source_name}{where}: not YAML: {problem}{_yaml_field(text, mark)}.", do=_HINT
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValidationError(
            f"{source_name}: not YAML: {str(error).splitlines()[0]}.", do=_HINT
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


def _yaml_field(text: str, mark: Any) -> str:
    if mark is None:
        return ""
    lines = text.splitlines()[: mark.line + 1]
    for line in reversed(lines):
        if found := re.match(r"\s*(?:-\s+)?[\"']?([\w.\-]+)[\"']?\s*:", line):
            return f' (at or after field "{found[1]}")'
    return ""
