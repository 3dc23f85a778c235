"""Whether a hint gives the answer away: it must not quote word for word what it corrects. Pure.

A teacher that reads the old answer in its hint would raise the probability of that very answer, which is the
opposite of what the hint is for.
"""

from learner.text import words

LONGEST_QUOTE = 8  # words in a row that a hint may share with the answer; a Chinese character is a word


def quotes(hint: str, answer: str) -> bool:
    """Whether the hint repeats more than LONGEST_QUOTE words of the answer in a row, or the whole of it."""
    said, answered = words(hint), words(answer)
    if not answered:
        return False
    length = min(LONGEST_QUOTE + 1, len(answered))
    if length < 3:  # "yes" may stand in any hint
        return said == answered
    pieces = {tuple(answered[at : at + length]) for at in range(len(answered) - length + 1)}
    return any(tuple(said[at : at + length]) in pieces for at in range(len(said) - length + 1))
