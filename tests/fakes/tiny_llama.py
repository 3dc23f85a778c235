"""Random Llamas of a few thousand weights, saved as a real model folder: no download, no tokenizer."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 512


def save(folder: Path, *, tied: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Writes a model folder and returns it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder
