"""Whether a reply has as many token ids as it says: what was lost or came twice shows in no text. Pure.

A usage counts a prompt once and sums up all answers, stop tokens and thoughts included; meta_info counts each
choice by itself. What a reply does not state contradicts nothing.
"""

from gateway.fold.answer import Answer, Reply

#: Tool-call parser → ids at a prompt's end that SGLang leaves out of the count (`_reported_prompt_tokens`).
UNCOUNTED = {"kimi_k3": 3}


def contradicts(reply: Reply, parser: str | None = None) -> bool:
    """Whether ids and counts disagree. Of several answers it is not known which one is wrong.

    `parser`: the engine's tool-call parser, None where it is unknown.
    """
    usage = reply.usage or {}
    uncounted = UNCOUNTED.get(parser or "", 0)
    return _sum_differs(reply, usage.get("completion_tokens")) or any(
        _differs(answer, usage.get("prompt_tokens"), uncounted) for answer in reply.answers
    )


def _sum_differs(reply: Reply, total: object) -> bool:
    known = [len(answer.response_ids) for answer in reply.answers if answer.response_ids is not None]
    return type(total) is int and bool(known) and total != sum(known)


def _differs(answer: Answer, prompt_tokens: object, uncounted: int) -> bool:
    if answer.response_ids is not None and answer.token_count not in (None, len(answer.response_ids)):
        return True
    if answer.prompt_ids is None:
        return False
    length = len(answer.prompt_ids)
    stated = [count for count in (answer.prompt_count, prompt_tokens) if type(count) is int]
    return any(count not in (length, length - uncounted) for count in stated)
