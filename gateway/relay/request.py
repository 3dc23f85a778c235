"""A client's request after parsing: its body as an object, what the client states, whether it is allowed.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.relay import admission, capture, identity
from gateway.relay.client import Inbound
from gateway.relay.identity import Identity


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request as the stages of a turn use it.

    A request that cannot be parsed is recorded too, so it has this form as well, with what could be read.
    """

    inbound: Inbound
    body: Mapping[str, Any]  # {} where it is not a JSON object
    identity: Identity
    problem: Exception | None = None  # why the body or the identity could not be read

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def choices(self) -> int:
        """The number of answers that the request asks for."""
        choices = self.body.get("n")
        return choices if isinstance(choices, int) else 1

    @property
    def conversation(self) -> object:
        """The same value for every request of a conversation, as far as that is cheap to know.

        The session's id where the client states one; otherwise the API key and the first two messages.
        """
        if self.identity.session is not None:
            return self.identity.session.id
        messages = self.body.get("messages")
        return self.inbound.key_id, repr(messages[:2]) if isinstance(messages, list) else None


def parse(inbound: Inbound) -> ParsedRequest:
    """Parses body and headers. Never raises: `check` raises the problem, once the turn can be recorded."""
    body: dict[str, Any] = {}
    stated = identity.UNKNOWN
    problem: Exception | None = None
    try:
        body = capture.parse(inbound.body)
    except Exception as error:  # whatever it is: `check` raises it, once the turn can be recorded
        problem = error
    try:  # a request whose body is unreadable has headers all the same
        stated = identity.identify(inbound.path_session, inbound.headers, body)
    except Exception as error:  # likewise
        problem = error
    return ParsedRequest(inbound, body, stated, problem)


def check(
    request: ParsedRequest, *, models: tuple[str, ...], refused_fields: frozenset[str], vocab_size: int | None
) -> None:
    """Checks everything that can be checked before an engine is chosen.

    `models`: the names that may be asked for. `refused_fields`: body fields that may not be used.
    `vocab_size`: the number of token ids that every engine knows; None: unknown.

    Raises:
        BadRequestError: the request is refused.
        Exception: parsing it failed by a fault of Dukou's own.
    """
    if request.problem is not None:
        raise request.problem
    path, body = request.inbound.path, request.body
    capture.check(path, body, models)
    admission.check_fields(body, refused_fields)
    admission.check_choices(path, body)
    admission.check_ids(path, body, vocab_size)
