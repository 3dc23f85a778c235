"""How likely the base model itself finds the demo's answers: the guard against a wish met by gibberish."""

import math
from pathlib import Path


def under_base(model_path: Path, asked: list[tuple[str, str]]) -> float:
    """exp of the mean negative log-likelihood of the answers' tokens, each after its question.

    Text is tokenised here on purpose: this measures text as a reader sees it, and trains nothing.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from learner.train.model import compute_dtype, multiplies_bfloat16

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine are far slower than one
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    dtype = compute_dtype(torch.bfloat16, "cpu", multiplies_bfloat16())
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype).eval()
    total, tokens = 0.0, 0
    for question, answer in asked:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        answer_ids = tokenizer(answer, add_special_tokens=False).input_ids
        if not answer_ids:
            continue
        ids = torch.tensor([prompt_ids + answer_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt_ids) - 1 : -1].float()
        total -= logits.log_softmax(-1).gather(1, ids[0, len(prompt_ids) :, None]).sum().item()
        tokens += len(answer_ids)
    return math.exp(total / tokens) if tokens else math.nan
