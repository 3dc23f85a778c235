"""Makes a turn out of its two spool records. Pure: lineage, which needs the past, comes after."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np

from dukou.settings.serving import StoreFalse
from dukou.store.body import Body
from dukou.store.turn_rows import TurnRow
from gateway.drain import sampling, trainable
from gateway.lineage import canonical, kinds
from gateway.lineage.canonical import Form
from gateway.lineage.place import Prefix, TurnRequest
from gateway.parse import reply, tokens
from gateway.parse.body import forbids_recording
from gateway.parse.body import read as read_body
from gateway.parse.reply import Answer, Reply, fold
from gateway.parse.text import Marker
from gateway.spool.format import Record
from gateway.spool.records import ReplyRecord, RequestRecord, decode_turn

_OPENINGS = 3  # messages at the beginning of a request among which a summary may stand
_IDS = ("idempotency-key", "x-client-request-id", "x-request-id")
_EXCERPT = 500  # characters of a refusal's body that the row's error repeats


@dataclass(frozen=True, slots=True)
class Draft:
    """A client request before lineage: one row per choice, all of one place."""

    request: TurnRequest
    rows: tuple[TurnRow, ...]
    message_count: int
    session_done: bool  # the client says that this was the session's last turn
    unrecorded: bool = False  # `privacy.store_false` forbids to keep anything of it

    @property
    def size(self) -> int:
        """Bytes that it roughly keeps in memory."""
        return sum(3 * row.body.size + 2 * len(row.response_text or "") for row in self.rows) + 4096


@dataclass(frozen=True, slots=True)
class _Request:
    """A request record, understood."""

    id: UUID
    started_at: datetime
    record: RequestRecord
    body: Mapping[str, Any]  # empty where the bytes are no JSON object
    pieces: Body
    endpoint: str
    messages: Sequence[Any]
    root: bytes  # the digest that the key's histories begin with
    forms: Sequence[Form]  # of the messages
    digests: Sequence[bytes]  # the chain over the messages
    kind: str
    kind_reason: str | None

    @property
    def prompt_hash(self) -> bytes | None:
        return self.digests[-1] if self.digests else None


@dataclass(frozen=True, slots=True)
class _Turn:
    """A request, how it ended, and what the gateway's settings say of it."""

    request: _Request
    ended: ReplyRecord
    reply: Reply
    miscounted: bool  # the reply's ids are not as many as it says
    policy_id: int | None
    store_false: StoreFalse


def assemble(
    request: Record, reply: Record | None, policy_id: int | None, store_false: StoreFalse = "no_train"
) -> Draft:
    """The turn of a request and its reply; `reply` is None where the relay died before it.

    `store_false` is `privacy.store_false`.

    Raises:
        ValueError: a record cannot be decoded (RecordError), or holds an id or a time that is none.
    """
    asked, ended = decode_turn(request, reply)
    read = _understood(asked)
    texts = read.endpoint == kinds.CHAT and trainable.wants_texts(read.body)
    folded = fold(reply.body, texts=texts) if reply is not None else Reply()
    miscounted = tokens.contradicts(folded, _parser(ended))
    turn = _Turn(read, ended, folded, miscounted, policy_id, store_false)
    answers: Sequence[Answer | None] = folded.answers or (None,)
    rows = tuple(_row(turn, answer, position) for position, answer in enumerate(answers))
    if reply is not None and not folded.answers and folded.error is None:
        rows = tuple(_with_excerpt(row, reply.body) for row in rows)
    return Draft(
        _turn_request(read),
        rows,
        len(read.messages),
        session_done=asked.session_done,
        unrecorded=forbids_recording(read.body, store_false),
    )


def _understood(record: RequestRecord) -> _Request:
    body, pieces = read_body(record.body)
    endpoint = _endpoint(record.path)
    messages = body.get("messages") if endpoint == kinds.CHAT else None
    messages = messages if isinstance(messages, list) else []
    root = canonical.root(record.tenant, record.key_id)
    forms = [canonical.form(message) for message in messages]
    kind, kind_reason = kinds.kind_of(endpoint, record.turn_type, body, forms)
    return _Request(
        id=UUID(record.id),
        started_at=_moment(record.at_ns),
        record=record,
        body=body,
        pieces=pieces,
        endpoint=endpoint,
        messages=messages,
        root=root,
        forms=forms,
        digests=canonical.chain(root, forms),
        kind=kind,
        kind_reason=kind_reason,
    )


def _turn_request(read: _Request) -> TurnRequest:
    record, session = read.record, read.record.session
    count = record.headers.get("x-stainless-retry-count", "0")
    return TurnRequest(
        id=read.id,
        tenant=record.tenant,
        key_id=record.key_id,
        user_name=_user(read.body),
        started_at=read.started_at,
        kind=read.kind,
        session=(session.id, session.source) if session is not None else None,
        parent_id=UUID(record.parent) if record.parent is not None else None,
        prefixes=_prefixes(read),
        messages=read.messages,
        prompt_hash=read.prompt_hash,
        attempt=int(count) if count.isascii() and count.isdigit() else 0,
        idempotency_key=record.headers.get("idempotency-key"),
        openings=tuple([form.text for form in read.forms[:_OPENINGS] if form.role is not None]),
        former=canonical.of_chain(read.root, read.forms, read.digests),
    )


def _prefixes(read: _Request) -> tuple[Prefix, ...]:
    """The beginnings that an earlier turn may have ended with, longest first."""
    before = [read.root, *read.digests]
    return tuple(
        Prefix(index + 1, read.digests[index], before[index], form.text)
        for index, form in reversed(list(enumerate(read.forms)))
        if form.role == "assistant"
    )


def _row(turn: _Turn, answer: Answer | None, position: int) -> TurnRow:
    read, ended, reply = turn.request, turn.ended, turn.reply
    record, mark = read.record, Marker()
    status, error = trainable.status(ended.outcome, read.endpoint, reply, answer)
    usage = reply.usage if position == 0 else None  # the sum over all choices: counted once
    alone = usage.get("completion_tokens") if usage is not None and len(reply.answers) == 1 else None
    capture = tokens.align(answer, alone if isinstance(alone, int) else None) if answer is not None else None
    stopped_by = answer.matched_stop if answer is not None else None
    version = _version(answer, ended)
    is_chat = read.endpoint == kinds.CHAT and bool(read.body)
    defaults = ended.sampling_defaults if is_chat else None
    sampling_class = sampling.sampling_class(read.body, defaults) if is_chat else None
    sampling_class, trained = trainable.decide(sampling_class, read.body, ended.tool_calling, answer)
    history_hash, exchange_hash = _with_answer(read, answer)
    prompt_ids = answer.prompt_ids if answer is not None else None
    return TurnRow(
        id=choice_id(read.id, position),
        request_id=read.id,
        choice_index=answer.index if answer is not None else 0,
        tenant=record.tenant,
        key_id=record.key_id,
        user_name=mark.text(_user(read.body)),
        policy_id=turn.policy_id if read.endpoint == kinds.CHAT else None,
        policy_version_min=version[0] if version is not None else None,
        policy_version_max=version[1] if version is not None else None,
        kind=read.kind,
        kind_reason=read.kind_reason,
        endpoint=read.endpoint,
        stream=record.stream,
        model=mark.text(_text(read.body.get("model"))),
        engine=ended.engine or record.engine,
        status=status,
        error=mark.text(ended.error or error),
        http_status=ended.http_status,
        body=read.pieces,
        sampling=mark.json(sampling.parameters(read.body)) if read.body else None,
        sampling_defaults=mark.json(defaults),
        response_text=mark.text(_said(answer)),
        reasoning_text=mark.text(answer.reasoning) if answer is not None else None,
        tool_calls=mark.json(answer.tool_calls) if answer is not None and answer.tool_calls else None,
        finish_reason=mark.text(answer.finish_reason) if answer is not None else None,
        matched_stop=mark.text(_text(stopped_by)),
        stopped_by=mark.json(stopped_by),
        usage=mark.json(usage),
        prompt_ids=np.array(prompt_ids, dtype=np.int32) if prompt_ids is not None else None,
        response_ids=capture.response_ids if capture is not None else None,
        response_logprobs=capture.logprobs if capture is not None else None,
        trained_tokens=trained,
        capture=capture.kind if capture is not None else "none",
        sampling_class=sampling_class,
        temperature=sampling.effective_temperature(read.body, defaults) if is_chat else None,
        untrainable_reason=trainable.untrainable_reason(
            endpoint=read.endpoint,
            kind=read.kind,
            body=read.body,
            store_false=turn.store_false,
            status=status,
            finish_reason=answer.finish_reason if answer is not None else None,
            capture=capture,
            has_prompt_ids=prompt_ids is not None,
            miscounted=turn.miscounted,
            version=version,
            sampling_class=sampling_class,
        ),
        text_altered=mark.altered or read.pieces.altered,
        history_hash=history_hash,
        prompt_hash=read.prompt_hash,
        exchange_hash=exchange_hash,
        client_request_id=mark.text(_client_request_id(record.headers)),
        started_at=read.started_at,
        first_token_at=_moment_if_known(ended.first_byte_ns),
        finished_at=_moment_if_known(ended.finished_ns),
    )


def _client_request_id(headers: Mapping[str, str]) -> str | None:
    return next((headers[name] for name in _IDS if name in headers), None)


def choice_id(request_id: UUID, position: int) -> UUID:
    """The id of a choice's row: the request's own for the first, else derived; the same at every reading."""
    if position == 0:
        return request_id
    random = hashlib.blake2b(request_id.bytes + position.to_bytes(4, "big"), digest_size=10).digest()
    value = int.from_bytes(request_id.bytes[:6] + random, "big")
    value = value & ~(0xF << 76) | 0x7 << 76  # version 7: it keeps the request's time
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def _with_answer(read: _Request, answer: Answer | None) -> tuple[bytes | None, bytes | None]:
    """The digests of the history and of the exchange that the answer ends."""
    if not read.forms or answer is None:
        return None, None
    message = {"role": "assistant", "content": answer.text, "tool_calls": answer.tool_calls}
    form = canonical.form(message)
    return canonical.extend(read.digests[-1], form), canonical.exchange(read.root, read.forms[-1], form)


def _version(answer: Answer | None, ended: ReplyRecord) -> tuple[int, int] | None:
    """What adapter or reply say of themselves, else what the relay knew, else unknown: never 0."""
    adapter = reply.adapter_version(ended.adapter or "")
    if adapter is not None:  # the engine's own label stays as it is when adapters change
        return adapter
    if answer is not None and answer.version is not None:
        return answer.version
    low, high = ended.version_min, ended.version_max
    return (low, high) if low is not None and high is not None else None


def _parser(ended: ReplyRecord) -> str | None:
    """The tool-call parser of the engine that answered; None: unknown."""
    return _text(ended.tool_calling.get("parser")) if ended.tool_calling is not None else None


def _said(answer: Answer | None) -> str | None:
    if answer is None:
        return None
    return answer.text if answer.text or answer.refusal is None else answer.refusal


def _with_excerpt(row: TurnRow, body: bytes) -> TurnRow:
    """An error whose body is no error object (a proxy's page, say) is quoted."""
    if row.status in ("ok", "client_disconnect") or row.error is not None or not body.strip():
        return row
    return replace(row, error=Marker().text(body[:_EXCERPT].decode("utf-8", "replace")))


def _endpoint(path: str) -> str:
    """The path without a session in front and without a query."""
    bare = path.partition("?")[0]
    if bare.startswith("/sessions/"):
        bare = "/" + bare.split("/", 3)[3] if bare.count("/") >= 3 else bare
    return bare


def _user(body: Mapping[str, Any]) -> str | None:
    return _text(body.get("user")) or _text(body.get("safety_identifier"))


def _text(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _moment_if_known(nanoseconds: int | None) -> datetime | None:
    return None if nanoseconds is None else _moment(nanoseconds)


def _moment(nanoseconds: int) -> datetime:
    seconds, rest = divmod(nanoseconds, 10**9)
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest // 1000)
