"""What to do about a reason that keeps turns from training, in the words of `learner status`."""

#: What a person can do about a reason that keeps all turns from training.
REMEDIES: dict[str, str] = {
    "side": "send ordinary chat turns, or X-Turn-Type: main where the client calls them side",
    "endpoint": "use /v1/chat/completions",
    "unreadable": "`python -m gateway aside` lists them, and drains them again after an update",
    "no_ids": "serve with SGLang as `python -m dukou engine` starts it",
    "no_logprobs": "serve with SGLang and a --tool-call-parser: without one it sends no log-probabilities",
    "version_unknown": "run the reconciler (`python -m gateway`), which knows the version",
    "sampling_unknown": "start SGLang with --sampling-defaults openai, or with a model folder that the "
    "gateway can read; or let clients state temperature, top_p, top_k, min_p and repetition_penalty",
    "sampling_greedy": "let clients sample at temperature 1",
    "sampling_truncated": "let clients leave out top_p, top_k and min_p (where the model recommends them: "
    "engine.sampling_defaults = openai); or batch.truncated = train",
    "sampling_constrained": "let clients leave out response_format, forced tools, penalties and biases "
    "(where the model recommends a penalty: engine.sampling_defaults = openai); strict tools are trained "
    "with the parser qwen25",
    "token_count_mismatch": "see whether a proxy before the engine drops or repeats parts of its streams",
    "store_false": 'set privacy.store_false = "ignore", or let clients leave out store: false',
    "no_next_state": "longer conversations, or a longer session.idle_seconds",
    "no_quorum": "see the votes table for what the judge answered",
    "abstained": "a judge of kind llm decides where the rules cannot",
    "stale": "raise batch.max_staleness or publish less often",
    "no_hint": "an LLM judge writes hints (judge.kind = llm); or train rewards as well: loss.mode = combine",
    "zero_score": "batch.zeros = train, or at_least_one",
    "cut_short": "batch.cut_short = train, or a larger max_tokens in requests",
    "grad_spike": "see batches.detail; a lower trainer.learning_rate, or a higher guard.max_spike",
    "drift": "see batches.detail; `python -m learner rollback`, or that limit of [guard]",
    "too_long": "raise trainer.max_tokens",
}
