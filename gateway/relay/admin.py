"""The admin API: `learner publish|rollback|pin|versions` over HTTP, for whoever holds an admin key.

It only reads and moves pointers in Postgres. Its calls run in threads: a worker that serves users never waits
for Postgres.
"""

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException

from dukou.errors import DatabaseError
from dukou.settings.model import Config
from dukou.store import database, processes, publishing
from dukou.store.postgres_errors import line_of
from dukou.store.publishing import PublishingError
from dukou.store.versions import RefusedVersionError, UnknownVersionError
from gateway.relay import errors, identity
from gateway.relay.client import Send
from gateway.relay.endpoint import Receive, Scope
from gateway.relay.errors import GatewayError

PREFIX = "/admin/"
CODES = {400: "bad_request", 404: "not_found", 409: "conflict", 503: "unavailable"}
T = TypeVar("T")


class Move(BaseModel):
    """What the POST endpoints take; which fields an endpoint reads is in docs/publishing.md."""

    model_config = ConfigDict(extra="forbid")

    version: int | None = None
    share: float | None = None
    because: str | None = None


class Admin:
    """One worker's admin API. Its database is opened at the first call."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._keys = identity.Keys(config.gateway.admin_keys)
        self._database: Engine | None = None
        self._app = self._make_app()

    async def serve(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> None:
        """Raises GatewayError: 401 for a wrong key, 403 where no admin key is configured."""
        if not self._keys:
            raise GatewayError(
                "the admin API is closed: set gateway.admin_keys (DUKOU_ADMIN_KEYS)",
                status=403,
                type=errors.type_of(403),
                code="admin_closed",
            )
        self._keys.check(headers)
        await self._app(scope, receive, send)

    def close(self) -> None:
        if self._database is not None:
            self._database.dispose()

    def _make_app(self) -> FastAPI:
        app = FastAPI(title="Dukou admin", docs_url=None, redoc_url=None, openapi_url=None)
        app.get("/admin/versions")(self._versions)
        app.post("/admin/publish")(self._publish)
        app.post("/admin/rollback")(self._rollback)
        app.post("/admin/pin")(self._pin)
        app.delete("/admin/pin")(self._unpin)
        refusals: dict[type[Exception], int] = {
            PublishingError: 409,
            RefusedVersionError: 409,
            UnknownVersionError: 404,
            DatabaseError: 503,
            DBAPIError: 503,
            RequestValidationError: 400,
            HTTPException: 404,
        }
        for kind, status in refusals.items():
            app.add_exception_handler(kind, _refusal(status))
        return app

    def _versions(self) -> dict[str, object]:
        def read(connection: Connection, policy_id: int) -> dict[str, object]:
            state = publishing.pointers(connection, policy_id)
            tree = publishing.tree(connection, policy_id)
            seen = processes.get_all(connection)
            return {
                "live": state.live,
                "pinned": state.pinned,
                "versions": [publishing.as_json(version, state) for version in tree],
                "engines": [{"url": row.url, "state": row.state, "version": row.version} for row in seen],
            }

        return self._in_transaction(read)

    def _publish(self, move: Move) -> dict[str, object]:
        if move.share is None:
            return self._moved(lambda c, policy: publishing.publish(c, policy, move.version))
        share = move.share
        tried = self._in_transaction(lambda c, policy: publishing.try_out(c, policy, move.version, share))
        return {"trial": tried, "share": share}

    def _rollback(self, move: Move) -> dict[str, object]:
        return self._moved(lambda c, policy: publishing.rollback(c, policy, move.version, move.because))

    def _pin(self, move: Move) -> dict[str, object]:
        return self._moved(lambda c, policy: publishing.pin(c, policy, move.version)) | {"pinned": True}

    def _unpin(self) -> dict[str, object]:
        self._in_transaction(publishing.unpin)
        return {"pinned": False}

    def _moved(self, move: Callable[[Connection, int], int]) -> dict[str, object]:
        return {"live": self._in_transaction(move)}

    def _in_transaction(self, ask: Callable[[Connection, int], T]) -> T:
        self._database = self._database or database.engine(self._config)
        with self._database.begin() as connection:
            policy = publishing.find(connection, self._config.policy.name)
            return ask(connection, policy.id)


def _refusal(status: int) -> Callable[[Request, Exception], Response]:
    def answer(_: Request, error: Exception) -> Response:
        told = GatewayError(_words(error), status=status, type=errors.type_of(status), code=CODES[status])
        return Response(errors.body_of(told), status, media_type="application/json")

    return answer


def _words(error: Exception) -> str:
    if isinstance(error, DBAPIError):
        return line_of(error)
    if isinstance(error, RequestValidationError):
        first: MutableMapping[str, Any] = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return "there is no such endpoint here" if isinstance(error, HTTPException) else str(error)
