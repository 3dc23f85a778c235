"""The LLM judge: a rubric, a fenced case, one strict verdict a vote."""

import secrets
from typing import Any

from learner.score.channel import Channel, Exchange
from learner.score.gate import Clock
from learner.score.judge import Ballot
from learner.score.next_state import Case
from learner.score.parse import UNPARSABLE, parse, without_thinking
from learner.score.render import fence, render
from learner.score.rubric import load
from store import config_model
from store.calls import Call
from store.votes import OK, Vote

EMPTY = "empty"
TRUNCATED = "truncated"
CALLS_OF_A_VOTE = 4  # the question, one with a doubled budget, and parameters that the model refuses
RAW_CHARACTERS = 8_000

VERDICT_FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "reason": {"type": "string"},
                "score": {"type": ["integer", "null"], "enum": [-1, 0, 1, None]},
                "hint": {"type": "string"},
            },
            "required": ["reason", "score", "hint"],
            "additionalProperties": False,
        },
    },
}


class LLMJudge:
    def __init__(self, settings: config_model.Judge, *, clock: Clock, as_side: bool = False) -> None:
        """`as_side` marks the calls as side turns, for a judge that is the policy's own endpoint.

        Raises:
            ValueError: there is no such rubric.
        """
        self.name = f"llm:{settings.model}"
        self.rubric = settings.rubric
        self.votes = settings.votes
        self.quorum = settings.quorum
        self.concurrency = settings.concurrency
        self.seconds = settings.timeout_sec * CALLS_OF_A_VOTE
        self._instructions = load(settings.rubric)
        self._max_tokens = settings.max_tokens
        self._channel = Channel(settings, clock=clock, headers={"X-Turn-Type": "side"} if as_side else None)

    def waiting(self) -> str | None:
        return self._channel.closed()

    def vote(self, case: Case, n: int) -> Ballot:
        messages = prompt(self._instructions, case, secrets.token_hex(8))
        calls: tuple[Call, ...] = ()
        vote: Vote | None = None
        for max_tokens in (self._max_tokens, 2 * self._max_tokens):
            exchange = self._channel.ask(messages, max_tokens, VERDICT_FORMAT)
            if exchange is None:
                break
            calls += exchange.calls
            vote = read(exchange, n)
            if vote.status not in (EMPTY, TRUNCATED):
                break
        return Ballot(vote, calls)


def prompt(instructions: str, case: Case, marker: str) -> list[dict[str, str]]:
    """The judge's messages. They differ between calls only in the marker, which stands in them twice."""
    return [
        {"role": "system", "content": instructions},
        {"role": "user", "content": fence(render(case), marker) + "\n\nYour verdict on the answer, as JSON:"},
    ]


def read(exchange: Exchange, n: int) -> Vote:
    """An exchange as a vote: a fault, an empty or cut-off reply and an unreadable one have no value."""
    if exchange.status != OK:
        return Vote(n, exchange.status)
    text = _storable(exchange.text or "")
    if not without_thinking(text).strip():
        return Vote(n, EMPTY, raw=text or None)
    parsed = parse(text)
    status = TRUNCATED if parsed.status == UNPARSABLE and exchange.cut_off else parsed.status
    return Vote(n, status, parsed.value, parsed.hint, raw=text)


def _storable(text: str) -> str:
    """Text that Postgres takes: no NUL, no half characters, bounded."""
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean[:RAW_CHARACTERS]
