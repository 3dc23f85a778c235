"""Model and adapter folders that hold a right header and one byte over and over: enough for the gateway."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

from gateway.reconcile.checkpoint import MARKER, Tensor

BASE = {
    "model.embed_tokens.weight": Tensor("BF16", (16, 4)),
    "model.layers.0.self_attn.q_proj.weight": Tensor("BF16", (8, 4)),
    "model.norm.weight": Tensor("BF16", (4,)),
}
_BYTES = {"BF16": 2, "F32": 4}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], fill: int = 0) -> None:
    """`fill`: every byte of the data."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + _BYTES[tensor.dtype] * math.prod(tensor.shape)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes([fill]) * end)


def write_model(folder: Path, tensors: Mapping[str, Tensor] = BASE, fill: int = 0) -> Path:
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", tensors, fill)
    (folder / "config.json").write_text('{"tie_word_embeddings": true}')
    (folder / MARKER).touch()
    return folder


def write_adapter(folder: Path, rank: int = 2, into: int = 4) -> Path:
    folder.mkdir(parents=True)
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{stem}.lora_A.weight": Tensor("F32", (rank, into)),
        f"{stem}.lora_B.weight": Tensor("F32", (8, rank)),
    }
    write_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (folder / MARKER).touch()
    return folder
