"""Makes small HF model folders that need no hub: make_models.py FOLDER_OF_THE_GGUF OUT_FOLDER

smollm2-135m   SmolLM2-135M-Instruct, de-quantised to bf16, 269 MB: a real chat model (no tools template)
tiny-llama     random, hidden 64, 2 layers, the same tokenizer, 10 MB: for fast tests

Runs in the engine's environment, which has torch, transformers and gguf.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
TINY = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


def main(source: str, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    save(chat_model(source), tokenizer, out / "smollm2-135m")
    save(tiny_model(), tokenizer, out / "tiny-llama")


def chat_model(source: str) -> Any:
    """`save_pretrained` refuses a model that came from GGUF, so its weights go into a fresh one."""
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    drop = {"quantization_config", "_name_or_path", "dtype", "transformers_version", "architectures"}
    config = LlamaConfig(
        **{key: value for key, value in quantised.config.to_dict().items() if key not in drop}
    )
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    return model


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(**TINY, **IDS)
    config.architectures = ["LlamaForCausalLM"]
    return LlamaForCausalLM(config)


def save(model: Any, tokenizer: Any, out: Path) -> None:
    model.generation_config = GenerationConfig(**IDS)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
