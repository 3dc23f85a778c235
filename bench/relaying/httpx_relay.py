"""The textbook relay that the gateway benchmark compares with: FastAPI in front, httpx behind."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

_limits = httpx.Limits(max_connections=2000, max_keepalive_connections=2000)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=os.environ["UPSTREAM"], timeout=None, limits=_limits) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=_lifespan)


@app.post("/v1/chat/completions")
async def relay(request: Request) -> Response:
    """Forwards one request; streams come as they arrive."""
    client: httpx.AsyncClient = request.app.state.client
    headers = {"content-type": "application/json"}
    asked = client.build_request("POST", request.url.path, content=await request.body(), headers=headers)
    reply = await client.send(asked, stream=True)
    kind = reply.headers["content-type"]
    if not kind.startswith("text/event-stream"):
        body = await reply.aread()
        await reply.aclose()
        return Response(body, reply.status_code, media_type=kind)
    return StreamingResponse(_forwarded(reply), reply.status_code, media_type=kind)


async def _forwarded(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.aiter_raw():
            yield chunk
    finally:
        await reply.aclose()
