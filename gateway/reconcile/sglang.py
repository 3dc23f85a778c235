"""SGLang's control calls, typed. Never on a request path.

Three of its habits shape this file: an update may answer 400 although the weights changed, a label moves only
when it is sent along, and a paused engine fails its own readiness check.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Literal, Self

import httpx
import orjson

from dukou.errors import DukouError

_CHAT_SECONDS = 20.0

PauseMode = Literal["in_place", "retract", "abort"]


class Health(StrEnum):
    READY = "ready"
    STARTING = "starting"  # it answers, and its model is not loaded yet
    PAUSED = "paused"  # loaded and healthy, told to wait
    SILENT = "silent"  # connected, and no answer in time: busy or hung
    DEAD = "dead"  # nobody listens


class ControlError(DukouError):
    """A control call failed; the message names the call and repeats what the engine said."""


class EngineUnreachableError(ControlError):
    """The engine took no connection, or went away before it answered."""


class HalfUpdatedError(ControlError):
    """The engine answered 400 although the weights changed: its label and its cache are wrong now."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    model_path: str
    weight_version: str | None  # the label; an adapter does not move it


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What an engine was started with; a weight update changes none of it. None: it has none or says none."""

    sampling_defaults: str | None  # model | openai: where it takes values from that a request leaves out
    model_path: str | None
    preferred_sampling_params: Mapping[str, Any]
    tool_call_parser: str | None
    grammar_backend: str | None
    max_loras_per_batch: int | None  # adapters that run at once, the base model among them


class Control:
    """One engine's control side. Waits are in seconds; a weight load may take minutes."""

    def __init__(
        self,
        url: str,
        api_key: str = "",
        *,
        look_timeout: float = 5,
        load_timeout: float = 600,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url
        self._look = httpx.Timeout(look_timeout)
        self._load = httpx.Timeout(load_timeout, connect=look_timeout)
        self._client = httpx.Client(base_url=url, headers=headers, timeout=self._look, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def health(self) -> Health:
        """`/ready` and `/ping` only look at flags; `/health` would make the engine generate a token."""
        try:
            ready = self._client.get("/ready")
            if ready.status_code == 404:  # another server than SGLang 0.5.23
                ready = self._client.get("/health")  # which is also not everybody's
                return Health.STARTING if ready.status_code >= 500 else Health.READY
            if ready.status_code == 200:
                return Health.READY
            alive = self._client.get("/ping").status_code == 200
        except httpx.ReadTimeout:
            return Health.SILENT
        except httpx.TransportError:
            return Health.DEAD
        return Health.PAUSED if alive else Health.STARTING

    def model_info(self) -> ModelInfo | None:
        """The weights that the engine says it has; None: it has no such call, so it is no SGLang."""
        response = self._send("GET", "/model_info", None, self._look)
        if response.status_code == 404:
            return None
        body = self._body("/model_info", response)
        return ModelInfo(body["model_path"], body.get("weight_version"))

    def adapters(self) -> frozenset[str]:
        """The names of the LoRA adapters that are loaded."""
        body = self._body("/v1/models", self._send("GET", "/v1/models", None, self._look))
        return frozenset(card["id"] for card in body["data"] if card.get("parent") is not None)

    def server_info(self) -> ServerInfo:
        """What it was started with."""
        body = self._body("/server_info", self._send("GET", "/server_info", None, self._look))
        said = body if isinstance(body, dict) else {}
        places = said.get("max_loras_per_batch")
        return ServerInfo(
            sampling_defaults=_text(said.get("sampling_defaults")),
            model_path=_text(said.get("model_path")),
            preferred_sampling_params=_object(said.get("preferred_sampling_params")),
            tool_call_parser=_text(said.get("tool_call_parser")),
            grammar_backend=_text(said.get("grammar_backend")),
            max_loras_per_batch=places if isinstance(places, int) else None,
        )

    def pause(self, mode: PauseMode = "in_place") -> None:
        """`in_place` keeps running requests and their caches as they are until `continue_`."""
        self._post("/pause_generation", {"mode": mode})

    def continue_(self) -> None:
        """Ends a pause; does nothing to an engine that is not paused."""
        self._post("/continue_generation", {})

    def update_weights_from_disk(self, path: str, version: str, *, flush_cache: bool = False) -> None:
        """Loads a model folder of the same shapes under a new label; running requests are not aborted.

        Raises:
            HalfUpdatedError: the weights changed and the call failed all the same.
            ControlError: the old weights go on serving.
        """
        body = {
            "model_path": path,
            "weight_version": version,
            "flush_cache": flush_cache,
            "abort_all_requests": False,
        }
        response = self._send("POST", "/update_weights_from_disk", body, self._load)
        if response.status_code == 400 and "Weights were updated" in response.text:
            raise HalfUpdatedError(_complaint("/update_weights_from_disk", response))
        answer = self._body("/update_weights_from_disk", response)
        if answer.get("success") is False:
            raise ControlError(f"/update_weights_from_disk: {answer.get('message')}")

    def flush_cache(self) -> None:
        self._post("/flush_cache", {})

    def load_lora(self, name: str, path: str) -> None:
        body = {"lora_name": name, "lora_path": path}
        self._body("/load_lora_adapter", self._send("POST", "/load_lora_adapter", body, self._load))

    def unload_lora(self, name: str) -> None:
        """Waits for the adapter's running requests, as long as they take within the load timeout."""
        body = {"lora_name": name}
        self._body("/unload_lora_adapter", self._send("POST", "/unload_lora_adapter", body, self._load))

    def chat(self, body: bytes) -> tuple[int, bytes]:
        """Asks what a user would ask; status and body of the reply."""
        try:
            response = self._client.post(
                "/v1/chat/completions",
                content=body,
                headers={"content-type": "application/json"},
                timeout=_CHAT_SECONDS,
            )
        except httpx.TransportError as error:
            raise EngineUnreachableError(
                f"/v1/chat/completions: {type(error).__name__} {error}".rstrip()
            ) from error
        return response.status_code, response.content

    def score(self, ids: Sequence[int], start: int = 1, adapter: str | None = None) -> list[float | None]:
        """Log-probabilities at T = 1, in nats, of `ids[start:]`, each given the ids before it.

        Ids must lie inside the vocabulary: one outside it kills the engine. None: the engine gave none.
        """
        body: dict[str, Any] = {
            "input_ids": list(ids),
            # Nothing is sampled, yet a temperature of 0 would send all requests that run at the time through
            # the engine's slow sampler (a sort of the vocabulary) until the engine is idle.
            "sampling_params": {"temperature": 1, "max_new_tokens": 0},
            "return_logprob": True,
            # One token earlier: the first entry of the answer is always null.
            "logprob_start_len": start - 1,
        }
        if adapter is not None:
            body["lora_path"] = adapter
        return _scored(
            ids[start:], self._body("/generate", self._send("POST", "/generate", body, self._load))
        )

    def checksum(self) -> str:
        """One checksum over all weights: equal weights, equal checksum."""
        return str(self._checked()["per_engine_checksum"])

    def checksums(self) -> list[dict[str, str]]:
        """Of every tensor as the engine has it (fused, or a rank's slice), by name: one mapping per rank."""
        return [rank["checksums"] for rank in self._checked()["ranks"]]

    def _checked(self) -> Any:
        body = {"action": "checksum"}
        return self._body("/weights_checker", self._send("POST", "/weights_checker", body, self._load))

    def tensor(self, name: str, count: int = 100) -> list[float]:
        """The first values of a tensor, of its first rows where it is a matrix."""
        answer = self._post("/get_weights_by_name", {"name": name, "truncate_size": count})
        values: list[float] = []
        for row in answer["parameter"] if isinstance(answer, dict) else answer:
            values.extend(row if isinstance(row, list) else [row])
        return values[:count]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._body(path, self._send("POST", path, body, self._look))

    def _send(self, method: str, path: str, body: Any, timeout: httpx.Timeout) -> httpx.Response:
        try:
            return self._client.request(method, path, json=body, timeout=timeout)
        except httpx.TransportError as error:
            raise EngineUnreachableError(f"{path}: {type(error).__name__} {error}".rstrip()) from error

    def _body(self, path: str, response: httpx.Response) -> Any:
        if response.status_code != 200:
            raise ControlError(_complaint(path, response))
        if not response.headers.get("content-type", "").startswith("application/json"):
            return {}
        return response.json()


def _scored(wanted: Sequence[int], answer: Any) -> list[float | None]:
    """Raises ControlError where other tokens were scored than asked."""
    entries = answer["meta_info"]["input_token_logprobs"][1:]
    scored = [entry[1] for entry in entries]
    if scored != list(wanted):
        at = next(
            (i for i, (ours, theirs) in enumerate(zip(wanted, scored, strict=False)) if ours != theirs), 0
        )
        raise ControlError(
            f"/generate scored {len(scored)} other tokens than the {len(wanted)} asked: "
            f"at {at} {scored[at : at + 3]}, not {list(wanted[at : at + 3])}"
        )
    return [entry[0] for entry in entries]


def _complaint(path: str, response: httpx.Response) -> str:
    """The engine's own words, whichever of its error shapes it chose."""
    try:
        body = response.json()
    except ValueError:
        return f"{path} answered {response.status_code}: {response.text[:300]}"
    if isinstance(body, dict):
        error = body.get("error")
        nested = error.get("message") if isinstance(error, dict) else None
        said = body.get("message") or body.get("error_message") or nested or body
    else:
        said = body
    return f"{path} answered {response.status_code}: {str(said)[:300]}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _object(value: Any) -> Mapping[str, Any]:
    """An object, or the text of one."""
    try:
        found = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
