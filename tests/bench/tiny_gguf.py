"""Write a small Llama as a GGUF of the kinds that the real one has: Q4_1, Q8_0 and F32.

``python -m tests.bench.tiny_gguf FILE [--architecture NAME] [--kind NAME] [--no-template]`` needs
numpy and gguf.  Its tokens are the bytes and three special ones; its weights are drawn.  In the
file the rows of queries and keys stand as llama.cpp's own conversion puts them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

SIZE: Final = 128
HEADS, KV_HEADS, HEAD = 2, 1, 64
LAYERS, WIDE = 4, 256
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokens() -> list[str]:
    """The special tokens, and each byte as byte-level BPE spells it; one pair, and unused names."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    spelt = {byte: chr(byte) for byte in plain}
    spelt |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [
        *SPECIAL,
        *(spelt[byte] for byte in range(256)),
        "he",
        *(f"<unused{n}>" for n in range(60)),
    ]


def weights() -> dict[str, Any]:
    """The model's weights by the names of transformers, in float32."""
    import numpy

    draw = numpy.random.default_rng(7)

    def drawn(rows: int, columns: int, scale: float) -> Any:
        return (draw.standard_normal((rows, columns)) * scale).astype(numpy.float32)

    own = {
        "model.embed_tokens": drawn(len(tokens()), SIZE, 1.0),
        "model.norm": numpy.ones(SIZE, numpy.float32),
        "lm_head": drawn(len(tokens()), SIZE, 1.0),
    }
    own["lm_head"][: len(SPECIAL)] = 0.0  # no answer ends by itself
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        own |= {
            f"{layer}.input_layernorm": 1 + drawn(1, SIZE, 0.1)[0],
            f"{layer}.post_attention_layernorm": 1 + drawn(1, SIZE, 0.1)[0],
            f"{layer}.self_attn.q_proj": drawn(HEADS * HEAD, SIZE, 0.05),
            f"{layer}.self_attn.k_proj": drawn(KV_HEADS * HEAD, SIZE, 0.05),
            f"{layer}.self_attn.v_proj": drawn(KV_HEADS * HEAD, SIZE, 0.05),
            f"{layer}.self_attn.o_proj": drawn(SIZE, HEADS * HEAD, 0.05),
            f"{layer}.mlp.gate_proj": drawn(WIDE, SIZE, 0.05),
            f"{layer}.mlp.up_proj": drawn(WIDE, SIZE, 0.05),
            f"{layer}.mlp.down_proj": drawn(SIZE, WIDE, 0.05),
        }
    return own


def file_name(name: str) -> tuple[str, int]:
    """The name of a tensor in a GGUF, and the heads whose rows stand in pairs there, or 0."""
    top = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    if name in top:
        return f"{top[name]}.weight", 0
    _, _, number, *rest = name.split(".")
    parts = {
        "input_layernorm": ("attn_norm", 0),
        "post_attention_layernorm": ("ffn_norm", 0),
        "self_attn.q_proj": ("attn_q", HEADS),
        "self_attn.k_proj": ("attn_k", KV_HEADS),
        "self_attn.v_proj": ("attn_v", 0),
        "self_attn.o_proj": ("attn_output", 0),
        "mlp.gate_proj": ("ffn_gate", 0),
        "mlp.up_proj": ("ffn_up", 0),
        "mlp.down_proj": ("ffn_down", 0),
    }
    part, heads = parts[".".join(rest)]
    return f"blk.{number}.{part}.weight", heads


def paired(rows: Any, heads: int) -> Any:
    """Rows of queries or keys as llama.cpp's conversion orders them."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write(path: Path, architecture: str, kind: str, *, template: bool) -> None:
    """Write the file.

    :param kind: of the projections.
    """
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens()))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens()) - len(SPECIAL)))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    if template:
        writer.add_chat_template(TEMPLATE)
    for name, own in weights().items():
        place, heads = file_name(name)
        rows = paired(own, heads) if heads else own
        if rows.ndim == 1:
            writer.add_tensor(place, rows)
            continue
        quantised = "Q8_0" if name in ("model.embed_tokens", "lm_head") else kind
        type_ = gguf.GGMLQuantizationType[quantised]
        writer.add_tensor(place, gguf.quantize(rows, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--architecture", default="llama")
    parser.add_argument("--kind", default="Q4_1")
    parser.add_argument("--no-template", action="store_true")
    args = parser.parse_args()
    write(args.file, args.architecture, args.kind, template=not args.no_template)


if __name__ == "__main__":
    main()
