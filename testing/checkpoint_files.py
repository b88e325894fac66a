"""Checkpoints for tests that move one; for scripts that test outside of Bazel."""

import json
import pathlib
import struct


def tensor(fill: int, index: int, tensor_bytes: int) -> bytes:
    """The bytes of one tensor of write_checkpoint."""
    return bytes([fill + index]) * tensor_bytes


def write_checkpoint(folder: pathlib.Path, fill: int = 0, tensors: int = 4, tensor_bytes: int = 64 * 1024) -> None:
    """A new folder with one file of safetensors: layer.0 and so on, of bytes that differ by `fill` and tensor."""
    folder.mkdir()
    header = {
        "layer.%d" % i: {"dtype": "U8", "shape": [tensor_bytes], "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes]}
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    body = b"".join(tensor(fill, i, tensor_bytes) for i in range(tensors))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
