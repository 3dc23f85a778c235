"""What people and the environment said of a turn, as one number. Pure.

1. What one feedback says: its `score`; else its `rating`; else +1 or -1 by its `outcome`; else -1 where it
   brings a `correction` (an answer that had to be corrected fell short); a comment alone says nothing.
2. Each rater's last word counts, and the raters' mean is the reward.
3. People outrank the environment: outcomes count only where no person rated, scored or corrected.

All of it outranks every judge (`scores.PRECEDENCE`). What lineage shows counts last, and only where
nothing followed the answer: -1 where the user had it made again (`regenerated`) or wrote it anew (`edited`,
`learner/score/edits.py`); an edited question says nothing.
"""

from collections.abc import Sequence

from dukou.store.feedback import Opinion


def reward(opinions: Sequence[Opinion]) -> float | None:
    """The reward in [-1, 1], None where no feedback says how good it was; `opinions` in order of time."""
    for of in (_of_person, _of_environment):
        last = {opinion.rater: value for opinion in opinions if (value := of(opinion)) is not None}
        if last:
            return sum(last.values()) / len(last)
    return None


def hints(opinions: Sequence[Opinion]) -> tuple[str, ...]:
    """What people wrote, newest first: hindsight in their own words."""
    return tuple(opinion.comment for opinion in reversed(opinions) if opinion.comment)


def correction(opinions: Sequence[Opinion]) -> str | None:
    """The newest corrected answer."""
    return next((opinion.correction for opinion in reversed(opinions) if opinion.correction), None)


def _of_person(opinion: Opinion) -> float | None:
    if opinion.score is not None:
        return opinion.score
    if opinion.rating is not None:
        return float(opinion.rating)
    return -1.0 if opinion.correction and opinion.success is None else None


def _of_environment(opinion: Opinion) -> float | None:
    return None if opinion.success is None else 1.0 if opinion.success else -1.0
