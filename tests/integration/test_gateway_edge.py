"""Keys, CORS, envelopes, paths and models: what a worker answers by itself."""

import gzip
import json
import logging
from hashlib import sha256
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.fakes.gateway import ASK, CHAT, config_for, recorded, running
from tests.fakes.upstream import FakeUpstream, Send, answer, chunk, chunked, event

pytestmark = pytest.mark.anyio

OK = [Send(answer(200, {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}))]
KEY = "secret-key-of-a-client"


def keys(*entries: str) -> list[SecretStr]:
    return [SecretStr(entry) for entry in entries]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHAT, b'{"model":"nope","messages":[]}', 404),
        ("POST", CHAT, b"{", 400),
        ("POST", CHAT, b"", 400),
        ("POST", CHAT, b"[1]", 400),
        ("POST", CHAT, b'{"model":"m","functions":[{"name":"s"}],"messages":[]}', 400),
        ("GET", "/v1/nothing", b"", 404),
        ("GET", CHAT, b"", 405),
        ("DELETE", "/v1/models", b"", 405),
        ("POST", "/v1/responses", b"{}", 404),
    ],
)
async def test_every_refusal_has_the_envelope(
    tmp_path: Path, method: str, path: str, body: bytes, status: int
) -> None:
    """P1, P13, P22."""
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.request(method, path, content=body)
    assert got.status_code == status
    error = got.json()["error"]
    assert got.json().keys() == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert not engine.requests


@pytest.mark.parametrize(
    "path",
    [
        "/update_weights_from_disk", "/pause_generation", "/continue_generation", "/flush_cache", "/generate",
        "/load_lora_adapter", "/unload_lora_adapter", "/abort_request", "/server_info",
        "/v1/load_lora_adapter", "/v1/loads", "/v1/chat/completions/../../generate", "/v1/completions/",
        "/sessions/s/v1/../generate", "//generate",
    ],
)  # fmt: skip
async def test_the_engines_control_side_is_out_of_reach(tmp_path: Path, path: str) -> None:
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        for method in ("GET", "POST"):
            assert (await gw.client.request(method, path, content=b"{}")).status_code in (404, 405, 307)
    assert not engine.requests


@pytest.mark.parametrize("entry", [KEY, "sha256:" + sha256(KEY.encode()).hexdigest(), f"other,{KEY}"])
async def test_keys_open_the_door_and_go_no_further(
    tmp_path: Path, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P1, P16."""
    caplog.set_level(logging.DEBUG)
    config = config_for(tmp_path, "http://127.0.0.1:9", keys=keys(entry))
    async with FakeUpstream(OK) as engine:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"urls": [engine.url]})})
        async with running(config) as gw:
            assert (await gw.client.post(CHAT, json=ASK)).status_code == 401
            assert (await gw.client.post(CHAT, json=ASK, headers={"x-api-key": "wrong"})).status_code == 401
            for headers in (
                {"authorization": f"bearer {KEY}"},
                {"Authorization": f"Bearer  {KEY}"},
                {"x-api-key": KEY},
            ):
                assert (await gw.client.post(CHAT, json=ASK, headers=headers)).status_code == 200
            assert (await gw.client.get("/healthz")).status_code == 200
            await gw.settled(3)
    assert all(KEY not in str(request.headers) for request in engine.requests)
    spool = b"".join(path.read_bytes() for path in (tmp_path / "spool").glob("*.seg"))
    assert KEY.encode() not in spool
    assert KEY not in caplog.text
    assert {request.meta["key_id"] for request, _ in recorded(tmp_path / "spool")} == {
        sha256(KEY.encode()).hexdigest()[:12]
    }


async def test_the_engine_gets_the_engines_key(tmp_path: Path) -> None:
    config = config_for(tmp_path, "http://127.0.0.1:9")
    async with FakeUpstream(OK) as engine:
        update = {"urls": [engine.url], "api_key": SecretStr("engine-key")}
        config = config.model_copy(update={"engine": config.engine.model_copy(update=update)})
        async with running(config) as gw:
            await gw.client.post(CHAT, json=ASK, headers={"authorization": "Bearer mine"})
    assert engine.asked()[0].headers["authorization"] == "Bearer engine-key"


async def test_browsers_get_their_preflight_and_can_read_a_refusal(tmp_path: Path) -> None:
    """P16."""
    asked = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    config = config_for(tmp_path, "http://127.0.0.1:9", keys=keys(KEY))
    async with running(config) as gw:
        preflight = await gw.client.options(CHAT, headers=asked)
        refused = await gw.client.post(CHAT, json=ASK, headers={"origin": "https://app.example"})
        head = await gw.client.head("/v1/models", headers={"x-api-key": KEY})
    assert preflight.status_code == 204
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "*"
    assert head.status_code == 200


async def test_bodies_that_are_too_large_or_compressed_are_refused_and_chunked_ones_are_not(
    tmp_path: Path,
) -> None:
    """P24."""

    async def parts():
        for byte in json.dumps(ASK).encode():
            yield bytes([byte])

    async with (
        FakeUpstream(OK) as engine,
        running(config_for(tmp_path, engine.url, max_body_bytes=1000)) as gw,
    ):
        large = await gw.client.post(CHAT, content=b"x" * 1001)
        packed = await gw.client.post(
            CHAT, content=gzip.compress(json.dumps(ASK).encode()), headers={"content-encoding": "gzip"}
        )
        chunked_body = await gw.client.post(CHAT, content=parts())
    assert (large.status_code, packed.status_code, chunked_body.status_code) == (413, 415, 200)
    assert large.json()["error"]["type"] == "invalid_request_error"


async def test_models_show_the_served_name_and_no_adapter(tmp_path: Path) -> None:
    """P22."""
    listed = {
        "data": [
            {"id": "/some/path", "max_model_len": 2048, "root": "/some/path", "parent": None},
            {"id": "default-v3", "parent": "/some/path"},
        ]
    }
    paths = {"/v1/models": [Send(answer(200, listed))]}
    async with FakeUpstream(OK, paths=paths) as engine, running(config_for(tmp_path, engine.url)) as gw:
        models = (await gw.client.get("/v1/models")).json()
        one = await gw.client.get("/v1/models/m")
        none = await gw.client.get("/v1/models/default-v3")
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("m", 2048)]
    assert one.json()["id"] == "m"
    assert none.status_code == 404


async def test_dukous_twins_are_not_forwarded_and_the_session_is_echoed(tmp_path: Path) -> None:
    ask = {**ASK, "session_id": "s1", "turn_type": "side", "session_done": True, "unknown": {"kept": 1}}
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=ask, headers={"x-request-id": "r1"})
        request, _ = await gw.turn()
    sent = engine.asked()[0].json
    assert not {"session_id", "turn_type", "session_done"} & sent.keys()
    assert sent["unknown"] == {"kept": 1}
    assert (got.headers["x-session-id"], got.headers["x-request-id"]) == ("s1", "r1")
    assert "openai-processing-ms" in got.headers
    assert request.meta["session"] == {"id": "s1", "source": "body:session_id"}
    assert (request.meta["turn_type"], request.meta["session_done"]) == ("side", True)
    assert json.loads(request.body) == ask


async def test_a_session_in_the_path_is_known(tmp_path: Path) -> None:
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(f"/sessions/abc{CHAT}", json=ASK)
        request, _ = await gw.turn()
    assert got.headers["x-session-id"] == "abc"
    assert request.meta["session"] == {"id": "abc", "source": "path"}
    assert engine.requests[0].path == CHAT


async def test_the_routes_file_says_version_salt_and_adapter(tmp_path: Path) -> None:
    frames = chunked(
        event(chunk({"content": "a"}) | {"model": "m:default-v3"}),
        event(chunk({}, "stop")),
        b"data: [DONE]\n\n",
    )
    async with FakeUpstream([Send(frames)]) as engine, running(config_for(tmp_path, engine.url)) as gw:
        entry = {
            "url": engine.url,
            "state": "ready",
            "version_low": 3,
            "version_high": 4,
            "adapter": "default-v3",
        }
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "routes.json").write_text(json.dumps({"engines": [entry]}))
        got = await gw.client.post(CHAT, json={**ASK, "stream": True, "lora_path": "mine"})
        _, reply = await gw.turn()
    sent = engine.asked()[0].json
    assert (sent["cache_salt"], sent["lora_path"]) == ("3", "default-v3")
    assert got.headers["x-policy-version"] == "3"
    assert (reply.meta["version_min"], reply.meta["version_max"]) == (3, 4)
    assert b'"model":"m"' in got.content.replace(b'"model": "m"', b'"model":"m"')
    assert b"default-v3" not in got.content


async def test_readiness_has_reasons(tmp_path: Path) -> None:
    healthy = {"/health": [Send(answer(200, {}))]}
    async with FakeUpstream(OK, paths=healthy) as engine, running(config_for(tmp_path, engine.url)) as gw:
        ready = await gw.client.get("/readyz")
    async with running(config_for(tmp_path, "http://127.0.0.1:9")) as gw:
        unready = await gw.client.get("/readyz")
        alive = await gw.client.get("/healthz")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert unready.status_code == 503
    assert "no engine is ready" in unready.json()["reasons"][0]
    assert alive.status_code == 200


async def test_a_full_spool_loses_the_record_and_serves_the_request(tmp_path: Path) -> None:
    config = config_for(tmp_path, "http://127.0.0.1:9", spool={"max_bytes": 10})
    async with FakeUpstream(OK) as engine:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"urls": [engine.url]})})
        async with running(config) as gw:
            assert (await gw.client.post(CHAT, json=ASK)).status_code == 200
            health = (await gw.client.get("/healthz")).json()
            ready = (await gw.client.get("/readyz")).json()
    assert health["turns_lost"] == 1
    assert health["status"] == "degraded"
    assert any("not recorded" in warning for warning in ready["warnings"])
    assert recorded(tmp_path / "spool") == []


async def test_a_fault_of_the_gateway_is_an_enveloped_500_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1."""

    def broken(*_: object) -> None:
        raise RuntimeError("inner words")

    monkeypatch.setattr("gateway.relay.capture.check", broken)
    async with FakeUpstream(OK) as engine, running(config_for(tmp_path, engine.url)) as gw:
        got = await gw.client.post(CHAT, json=ASK)
        _, reply = await gw.turn()
    assert got.status_code == 500
    assert got.json()["error"]["type"] == "server_error"
    assert "inner words" not in got.text
    assert reply.meta["outcome"] == "upstream_error"
