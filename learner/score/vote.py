"""Votes to score: quorum, majority, tie, abstention. Pure."""

from collections import Counter
from collections.abc import Sequence

from dukou.store.calls import of_channel
from dukou.store.scores import ABSTAINED, OK, Score, Vote
from learner.teach.choose import hints_of


def decide(votes: Sequence[Vote], quorum: int, *, unanimous: bool = False) -> Score:
    """What the votes come to.

    A vote that failed is missing: it is no 0 and it does not lower the quorum. The value with the most
    votes wins; where several have the most, the score is 0, because it is a tie. Too few values, although
    the judge did answer often enough, is an abstention. `quorum` is at least 1.

    `unanimous`, for a turn that seems to speak to the judge: one vote that differs, or cannot tell, makes an
    abstention. The quorum is then every vote, so that none is won by keeping another from coming back.
    """
    values = [vote.value for vote in votes if vote.status == OK and vote.value is not None]
    abstained = sum(vote.status == ABSTAINED for vote in votes)
    if unanimous and (len(set(values)) > 1 or abstained):
        return Score(None, ABSTAINED)
    if len(values) < quorum:
        return Score(None, ABSTAINED if len(values) + abstained >= quorum else "no_quorum")
    ranking = Counter(values).most_common()
    tied = len(ranking) > 1 and ranking[0][1] == ranking[1][1]
    value, reason = (0, "tie") if tied else (ranking[0][0], "majority")
    return Score(float(value), reason, max(hints_of(votes, quorum), key=len, default=None))


def blames_turn(vote: Vote) -> bool:
    """Whether the vote is missing for a reason that lies in what was asked or said, not in the channel."""
    return not vote.came_back and not of_channel(vote.status)
