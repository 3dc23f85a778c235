"""The database's URL, and what is said about one that cannot be used."""

import json

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from dukou.settings.model import Config
from dukou.settings.serving import Database
from dukou.store import database
from dukou.store.database import JsonText
from dukou.store.postgres_errors import UnusableUrlError, unreachable_line


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgresql+asyncpg"])
def test_every_spelling_of_postgres_gets_the_psycopg_driver(scheme: str) -> None:
    assert database.normalised(f" {scheme}://u:p%40ss@h:1/d?sslmode=require\n") == (
        "postgresql+psycopg://u:p%40ss@h:1/d?sslmode=require"
    )


@pytest.mark.parametrize(
    "given", ["host=h password=secret", "postgres://u:secret@h:port/d", "mysql://u:secret@h/d"]
)
def test_an_unusable_url_is_named_without_its_password(given: str) -> None:
    with pytest.raises(UnusableUrlError, match="DATABASE_URL") as caught:
        database.normalised(given)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_configured_url_is_used_and_no_server_is_started() -> None:
    assert database.url(Config(database=Database(url="postgres://h/d"))) == "postgresql+psycopg://h/d"


def test_an_unreachable_server_is_told_by_place_and_cause_without_the_password() -> None:
    told = "connection refused\n\tIs the server running on that host?"
    error = OperationalError("select 1", None, ConnectionRefusedError(told))
    said = unreachable_line(make_url("postgresql://u:secret@db.example:6432/chat"), error)
    assert said == "Postgres at db.example:6432/chat cannot be used: connection refused"


def test_json_that_is_text_already_is_bound_as_it_is() -> None:
    serialise = database.engine_at("postgresql+psycopg://h/d").dialect._json_serializer
    assert serialise(JsonText(b'{"b": 1, "a":1e2}')) == b'{"b": 1, "a":1e2}'
    assert json.loads(serialise({"n": 12345678901234567890123, "t": "渡口"})) == {
        "n": 12345678901234567890123,
        "t": "渡口",
    }


def test_a_number_that_is_no_json_is_refused_and_not_made_null() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        database.engine_at("postgresql+psycopg://h/d").dialect._json_serializer({"x": float("nan")})
