"""The one error of wrong settings, and what is right in the place of a wrong value."""

from pydantic_core import ErrorDetails

from store.errors import DukouError

_RIGHT = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "must have 2 items",  # only a tuple can lack one: every key has a default
    "path_type": "must be a path in quotes",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_type": "must be text in quotes",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "tuple_type": "must be a list",
    "value_error": "{error}",
}


class ConfigError(DukouError):
    """The settings are wrong; the text names the file and every problem, and holds no secret."""

    exit_status = 2

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source, self.problems = source, tuple(problems)
        lines = [f"{len(problems)} problems", *(f"  {problem}" for problem in problems)]
        super().__init__(f"{source}: " + "\n".join(lines if len(problems) > 1 else problems))


def what_is_right(detail: ErrorDetails) -> str:
    """Pydantic's finding in the words of a settings file, where pydantic's own speak of Python."""
    kind = detail["type"]
    return _RIGHT[kind].format(**detail.get("ctx", {})) if kind in _RIGHT else detail["msg"]
