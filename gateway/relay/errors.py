"""What a client may be told: the exception tree, and OpenAI's envelope for every error.

The openai client retries 408, 409, 429 and every status from 500 on, twice: a status here is chosen by
whether sending the same request again can help.
"""

from typing import Any

import orjson

from dukou.errors import DukouError


class GatewayError(DukouError):
    """An error that ends a request, with the status and words that the client gets."""

    status = 500
    type = "server_error"
    code: str | int | None = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        type: str | None = None,
        code: str | int | None = None,
        param: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status or self.status
        self.type = type or self.type
        self.code = code or self.code
        self.param = param
        self.headers = headers


class BadRequestError(GatewayError):
    """The request can never succeed as it is."""

    status, type, code = 400, "invalid_request_error", None


class UnauthorizedError(GatewayError):
    """No key, or none that is known."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class NotFoundError(GatewayError):
    """No such path or model."""

    status, type, code = 404, "invalid_request_error", "not_found"


class MethodNotAllowedError(GatewayError):
    """The path exists, the method does not."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class TooLargeError(GatewayError):
    """The body is over `gateway.max_body_bytes`."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedEncodingError(GatewayError):
    """The body is compressed."""

    status, type, code = 415, "invalid_request_error", "unsupported_content_encoding"


class NoEngineError(GatewayError):
    """Every engine is changing its weights or starting, for longer than a request is held."""

    status, type, code = 503, "service_unavailable", "engine_not_ready"


class BusyError(GatewayError):
    """As many requests are held as `gateway.max_held` allows."""

    status, type, code = 429, "rate_limit_error", "engine_busy"


class RequestKillsEnginesError(GatewayError):
    """Engines died of this very request, as far as one can tell."""

    status, type, code = 400, "invalid_request_error", "request_kills_engines"


class UpstreamError(GatewayError):
    """The engine failed, and another try may help."""

    status, type, code = 502, "upstream_error", "upstream_error"


class UpstreamConnectError(UpstreamError):
    """No connection to the engine: the request was not sent."""

    code = "upstream_unreachable"


class UpstreamClosedError(UpstreamError):
    """The engine got the request, and ended the connection before its answer was whole.

    `reset` tells a crash from a clean end.
    """

    code = "upstream_closed"

    def __init__(self, message: str, *, reset: bool) -> None:
        super().__init__(message)
        self.reset = reset


class UpstreamTimeoutError(UpstreamError):
    """The engine was silent for too long."""

    status, code = 504, "upstream_timeout"


PRIVATE_FIELD = "private_field"
INVALID_TOKEN_ID = "invalid_token_id"
N_TOO_LARGE = "n_too_large"
#: Codes of refusals that `/metrics` counts: requests that could harm an engine.
COUNTED = frozenset({RequestKillsEnginesError.code, PRIVATE_FIELD, INVALID_TOKEN_ID, N_TOO_LARGE})


def envelope(
    message: str, type: str, code: str | int | None = None, param: str | None = None
) -> dict[str, dict[str, Any]]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def body_of(error: GatewayError) -> bytes:
    """The JSON body that a client gets for `error`; `code` is a string or null, as OpenAI has it."""
    code = None if error.code is None else str(error.code)
    return orjson.dumps(envelope(error.message, error.type, code, error.param))


def frame_of(error: GatewayError) -> bytes:
    """The same as one SSE event, for a stream that has begun; `code` as the engine gave it."""
    payload = envelope(error.message, error.type, error.code, error.param)
    return b"data: " + orjson.dumps(payload) + b"\n\n"


#: Status of an engine's error → the type that the client is told.
TYPES = {
    429: "rate_limit_error",
    408: "timeout_error",
    500: "server_error",
    502: "upstream_error",
    503: "service_unavailable",
    504: "upstream_error",
}


def type_of(status: int) -> str:
    """The error type for an engine's status: the client's fault below 500 unless TYPES says otherwise."""
    return TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def from_upstream(status: int, payload: Any) -> GatewayError:
    """An engine's error, flat (SGLang) or wrapped (OpenAI), as the client gets it.

    401 and 403 concern Dukou's own key to the engine, so the client is told of a bad gateway.
    """
    inner = payload.get("error", payload) if isinstance(payload, dict) else payload
    if status in (401, 403):
        return UpstreamError("the engine refused the gateway's own credentials", code=status)
    fields = inner if isinstance(inner, dict) else {"message": inner}
    message = fields.get("message") or fields.get("detail") or f"the engine answered {status}"
    code, param = fields.get("code"), fields.get("param")
    return GatewayError(
        str(message).partition('\n  File "')[0].strip(),  # SGLang appends where in its own source it happened
        status=status,
        type=type_of(status),
        code=code if isinstance(code, str | int) else status,
        param=param if isinstance(param, str) else None,
    )


def status_in(payload: Any, default: int = 500) -> int:
    """The HTTP status that an error frame names in `code` (or `status_code`), else `default`."""
    inner = payload.get("error", payload) if isinstance(payload, dict) else payload
    if not isinstance(inner, dict):
        return default
    for name in ("code", "status_code", "status"):
        value = inner.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return default
