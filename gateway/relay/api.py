"""The endpoints that are not relayed: health, metrics, the list of models; errors for unknown paths."""

import time
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.relay import errors, identity
from gateway.relay.errors import GatewayError, MethodNotAllowedError, NotFoundError, UpstreamError
from gateway.relay.services import Services
from gateway.relay.upstream import Request as UpstreamRequest

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_MODELS_CACHE_SECONDS = 10.0


def make_service_app(services: Services) -> FastAPI:
    """The app for every path that is not relayed."""
    app = FastAPI(title="Dukou", docs_url=None, redoc_url=None, openapi_url=None)
    models = _ModelList(services)

    @app.get("/healthz")
    @app.get("/health")
    async def healthz() -> JSONResponse:
        return JSONResponse(services.health.alive())

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        state = await services.health.ready()
        return JSONResponse(state, 200 if state["ready"] else 503)

    @app.get(identity.METRICS)
    async def show_metrics() -> Response:
        services.health.metrics.save(len(services.health.turns))
        return Response(services.health.metrics.text(time.time()), media_type=_PROMETHEUS)

    @app.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": await models.cards()})

    @app.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def show_model(name: str) -> JSONResponse:
        for card in await models.cards():
            if card["id"] == name:
                return JSONResponse(card)
        raise NotFoundError("this model does not exist", code="model_not_found", param="model")

    app.add_exception_handler(HTTPException, _framework_error)
    app.add_exception_handler(NotFoundError, _not_found)
    return app


class _ModelList:
    """The models as clients see them: the same names, whatever version or adapter answers.

    The engine's own description of its model is asked for at most once in `_MODELS_CACHE_SECONDS`.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._created = int(time.time())
        self._cards: list[dict[str, Any]] = []
        self._until = 0.0

    async def cards(self) -> list[dict[str, Any]]:
        """One model object of OpenAI's API per name."""
        if not self._cards or time.monotonic() >= self._until:
            described = await self._described()
            base = {"object": "model", "created": self._created, "owned_by": "dukou"}
            kept = {k: v for k, v in described.items() if k in ("max_model_len", "owned_by")}
            self._cards = [base | kept | {"id": name, "root": name} for name in self._services.models]
            self._until = time.monotonic() + _MODELS_CACHE_SECONDS
        return self._cards

    async def _described(self) -> dict[str, Any]:
        """The first engine's description of its base model; empty where no engine gives one."""
        headers = [(b"accept", b"application/json"), *self._services.engine_auth]
        for engine in self._services.router.routes().engines:
            try:
                pool = self._services.upstreams.pool(engine.url)
                async with await pool.send(UpstreamRequest("GET", "/v1/models", headers)) as reply:
                    listed = orjson.loads(await reply.body())["data"]
                return next(card for card in listed if not card.get("parent"))
            except (UpstreamError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
                continue
        return {}


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotFoundError)
    return Response(errors.body_of(error), error.status, media_type="application/json")


async def _framework_error(request: Request, error: Exception) -> Response:
    """An error of the framework in OpenAI's form."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    shown: GatewayError = NotFoundError("there is no such endpoint here")
    if status == 405:
        shown = MethodNotAllowedError("this endpoint does not know that method")
    elif status != 404:
        shown = GatewayError("the request was refused", status=status, type=errors.type_of(status))
    headers = error.headers if isinstance(error, HTTPException) else None
    return Response(errors.body_of(shown), shown.status, headers, "application/json")
