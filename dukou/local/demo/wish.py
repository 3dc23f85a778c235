"""The demo's scripted user: what it wishes for, how it asks, and how it says in plain words what it thinks.

The wish: a reply speaks to the reader, names the topic and does not repeat itself. SmolLM2-135M meets it
in one reply of four or so, sampled at T = 1: often enough for a signal, seldom enough to leave room.
"""

import itertools
import re
from dataclasses import dataclass

_TOPICS = """
    rivers bicycles onions candles mirrors clouds pencils trains gardens whales
    blankets bridges lemons violins deserts postcards owls windows potatoes islands
    kitchens turtles lanterns museums sailboats mountains spoons bakeries foxes umbrellas
    volcanoes carpets tigers libraries tomatoes glaciers wolves ladders harbours beetles
"""
TOPICS = tuple(_TOPICS.split())
#: Asked during training; the other half is held out and asked only greedily, before and after.
TRAINED, HELD_OUT = TOPICS[::2], TOPICS[1::2]

QUESTIONS = (
    "Explain {topic} to me.",
    "What can I do with {topic}?",
    "How would you explain {topic} to me?",
    "How can I enjoy {topic}?",
    "Talk to me about {topic}.",
)
HELD_OUT_QUESTIONS = ("What should I know about {topic}?", "Can you describe {topic} for me?")

PRAISE = (
    "Thank you, that is how I like it.",
    "Thanks, that is exactly what I wanted.",
    "Great, thank you.",
    "Perfect, thanks!",
)
COMPLAINT = (
    "No, that is not what I asked for. Speak to me, name the topic, and do not repeat yourself.",
    "That is not right. Please talk to me directly about {topic} and do not repeat yourself.",
    "No. I wanted you to speak to me, and to name {topic}, without repeating.",
    "Not like that, please: say it to me, about {topic}, and don't repeat yourself.",
)


@dataclass(frozen=True, slots=True)
class Question:
    topic: str
    text: str


def question(topic: str, form: str) -> Question:
    return Question(topic, form.format(topic=topic))


def topic_of(text: str) -> str | None:
    """The topic that a question of ours is about; None for any other message."""
    return next((topic for topic in TOPICS if topic in text), None)


def distinct_bigrams(text: str) -> float:
    """Share of word bigrams that are different, in [0, 1]; 1 for fewer than two words."""
    words = text.lower().split()
    bigrams = list(itertools.pairwise(words))
    return len(set(bigrams)) / len(bigrams) if bigrams else 1.0


def is_met(reply: str, topic: str) -> bool:
    """Whether the reply speaks to the reader, names the topic (four letters) and does not repeat itself."""
    speaks = re.search(r"\byou", reply, re.IGNORECASE) is not None
    return speaks and topic[:4].lower() in reply.lower() and distinct_bigrams(reply) >= 0.85


def reaction(reply: str, topic: str, pick: int) -> str:
    """What the user says next. `pick` chooses among wordings."""
    wordings = PRAISE if is_met(reply, topic) else COMPLAINT
    return wordings[pick % len(wordings)].format(topic=topic)
