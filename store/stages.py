"""The stages of a turn and its legal moves, as data.

    awaiting_next ─► scorable ─► scored ─► batched ─► trained
          └──────────────┴──────────┴─────────┴─► dropped (with a reason)

A side turn, or one that can never be trained, is born `dropped`. `scored` means counted: a score that is
not NULL and a turn that may be trained. Feedback scores a turn that has no next state, or not yet. Nothing
leaves `trained`; only a next state that came late, feedback and re-scoring leave `dropped`.
"""

from enum import StrEnum


class Stage(StrEnum):
    AWAITING_NEXT = "awaiting_next"
    SCORABLE = "scorable"
    SCORED = "scored"
    BATCHED = "batched"
    TRAINED = "trained"
    DROPPED = "dropped"


TRANSITIONS: frozenset[tuple[Stage, Stage]] = frozenset(
    {
        (Stage.AWAITING_NEXT, Stage.SCORABLE),
        (Stage.AWAITING_NEXT, Stage.DROPPED),
        (Stage.SCORABLE, Stage.SCORED),
        (Stage.SCORABLE, Stage.DROPPED),
        (Stage.SCORED, Stage.BATCHED),
        (Stage.SCORED, Stage.DROPPED),
        (Stage.BATCHED, Stage.TRAINED),
        (Stage.BATCHED, Stage.DROPPED),
        (Stage.DROPPED, Stage.AWAITING_NEXT),
        (Stage.DROPPED, Stage.SCORABLE),
        (Stage.AWAITING_NEXT, Stage.SCORED),
        (Stage.DROPPED, Stage.SCORED),
    }
)

#: Reasons of a drop that a score takes back, wherever it comes from.
REASONS_THAT_A_SCORE_UNDOES = frozenset({"no_next_state", "no_quorum", "abstained"})

#: What a dropped turn's reason means, in the words of `learner status`. A new reason adds its words here.
REASONS: dict[str, str] = {
    "side": "a side request (title, summary, tool helper): forwarded, never trained",
    "endpoint": "not a chat completion",
    "unreadable": "its records could not be read: see its error, and `python -m gateway aside`",
    "status": "the answer did not end normally",
    "no_ids": "the engine gave no token ids",
    "no_logprobs": "the engine gave no log-probabilities",
    "logprob_count_mismatch": "the engine gave another number of log-probabilities than of tokens",
    "logprob_not_finite": "the engine gave a log-probability that is not a number",
    "logprob_impossible": "the engine gave a log-probability above 0",
    "token_count_mismatch": "the reply counts other tokens than it gave ids: chunks were lost or came twice",
    "ending": "the answer ended otherwise than by stop, length or a tool call",
    "version_unknown": "it is not known which policy version answered",
    "empty_answer": "the answer has no tokens",
    "forgotten": "its text was forgotten (python -m store.forget)",
    "retry": "the client sent the same request again",
    "sampling_unknown": "the request leaves out how to sample, and what the engine took for it is not known",
    "sampling_greedy": "sampled at temperature 0: not an on-policy sample",
    "sampling_truncated": "sampled with top-p, top-k or min-p, and batch.truncated drops those",
    "sampling_constrained": "sampled under a grammar, a forced tool call, a bias or penalties",
    "store_false": 'the client sent store: false; privacy.store_false = "ignore" would train such turns',
    "no_next_state": "the session ended before anything followed the answer",
    "no_quorum": "too few judge votes came back",
    "abstained": "the judge could not tell",
    "stale": "too many policy versions old when its batch closed",
    "not_an_ancestor": "its version was rolled back or refused",
    "too_long": "longer than the trainer's token budget",
    "out_of_vocabulary": "an id outside the model's vocabulary",
    "no_spread": "all answers of its group got the same reward: nothing to compare",
    "no_hint": "no hint says how it should have been answered, and loss.mode is opd",
    "zero_score": "scored 0, and batch.zeros drops those",
    "cut_short": "the answer ended at its token limit, and batch.cut_short drops those",
    "grad_spike": "the step's gradient was many times larger than usual: the whole batch was skipped",
    "drift": "the answers of its batch had drifted too far: the batch was skipped and learning is frozen",
    "not_finite": "the step's loss or gradient was not a number: the whole batch was skipped",
}


def check_transition(before: Stage, after: Stage) -> None:
    """Raises ValueError for a move that TRANSITIONS does not list."""
    if (before, after) not in TRANSITIONS:
        raise ValueError(f"a turn cannot go from {before} to {after}")
