"""Scripted users who talk through the ordinary openai client, several at once."""

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from openai import OpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam as Message

from dukou.local.demo import waiting, wish

ANSWER_TOKENS = 32
REACTION_TOKENS = 8
AT_ONCE = 8  # questions on held-out topics
#: A user whose gateway is killed under them tries again, as the openai client does; this often.
RETRIES = 10

#: What a user says to a reply about a topic; the number chooses among wordings.
React = Callable[[str, str, int], str]


@dataclass
class Tally:
    """What the users saw, counted on their side of the wire."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answers: int = 0
    met: list[bool] = field(default_factory=list)
    failed: int = 0
    say: Callable[[str], None] = waiting.Line().say

    def answered(self, met: bool) -> None:
        with self.lock:
            self.answers += 1
            self.met.append(met)

    def reacted(self) -> None:
        with self.lock:
            self.answers += 1

    def failure(self, error: Exception) -> None:
        with self.lock:
            self.failed += 1
        self.say(f"a request failed: {error!r}")

    def recent(self, n: int) -> tuple[int, int]:
        """How many of the last n questions were answered as wished, and how many that were."""
        with self.lock:
            last = self.met[-n:]
        return sum(last), len(last)


def client(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="not-needed", max_retries=RETRIES, timeout=300)


def stream(openai: OpenAI, model: str, messages: list[Message], max_tokens: int, temperature: float) -> str:
    """The text of one streamed answer. Raises OpenAIError where the request failed or the stream broke."""
    chunks = openai.chat.completions.create(
        model=model, messages=messages, max_tokens=max_tokens, temperature=temperature, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def converse(
    openai: OpenAI, model: str, asked: wish.Question, pick: int, tally: Tally, react: React = wish.reaction
) -> None:
    """One conversation: a question, its answer, and what the user says to it."""
    messages: list[Message] = [{"role": "user", "content": asked.text}]
    reply = stream(openai, model, messages, ANSWER_TOKENS, 1.0)
    tally.answered(wish.is_met(reply, asked.topic))
    messages += [
        {"role": "assistant", "content": reply},
        {"role": "user", "content": react(reply, asked.topic, pick)},
    ]
    stream(openai, model, messages, REACTION_TOKENS, 1.0)
    tally.reacted()


class Crowd:
    """`size` users at once, each in a thread, asking about the trained topics until told to stop."""

    def __init__(
        self, base_url: str, model: str, size: int, seed: int, tally: Tally, react: React = wish.reaction
    ) -> None:
        self.react = react
        self.stopped = threading.Event()
        shuffled = random.Random(seed)
        pairs = [wish.question(t, q) for t in wish.TRAINED for q in wish.QUESTIONS]
        shuffled.shuffle(pairs)
        self._questions = enumerate(itertools.cycle(pairs))
        self._lock = threading.Lock()
        openai = client(base_url)
        self._threads = [
            threading.Thread(target=self._talk, args=(openai, model, tally)) for _ in range(size)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()

    def _talk(self, openai: OpenAI, model: str, tally: Tally) -> None:
        while not self.stopped.is_set():
            with self._lock:
                pick, asked = next(self._questions)
            try:
                converse(openai, model, asked, pick, tally, self.react)
            except OpenAIError as error:
                tally.failure(error)


def ask_held_out(
    base_url: str,
    model: str,
    tally: Tally,
    line: waiting.Line,
    forms: Sequence[str] = wish.HELD_OUT_QUESTIONS,
) -> list[tuple[str, str]]:
    """(question, greedy answer) for every held-out topic and question form, AT_ONCE at a time."""
    openai = client(base_url)
    pending = [wish.question(t, q) for t in wish.HELD_OUT for q in forms]
    answers: dict[str, str] = {}
    queue, began = iter(pending), time.monotonic()
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                asked = next(queue, None)
            if asked is None:
                return
            try:
                reply = stream(openai, model, [{"role": "user", "content": asked.text}], ANSWER_TOKENS, 0.0)
            except OpenAIError as error:
                tally.failure(error)
                continue
            tally.reacted()
            answers[asked.text] = reply
            if len(answers) >= AT_ONCE:  # before that there is no pace: the first ones are all under way
                pace = waiting.left(len(answers), len(pending), time.monotonic() - began, math.inf)
                line.wait("answers on held-out topics", pace, f"{len(answers)} of {len(pending)}")

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    met = sum(wish.is_met(answers[q.text], q.topic) for q in pending if q.text in answers)
    line.say(f"held-out topics, greedy: {met} of {len(answers)} answered as wished")
    return [(q.text, answers[q.text]) for q in pending if q.text in answers]
