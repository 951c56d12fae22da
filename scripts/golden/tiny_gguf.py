# SPDX-License-Identifier: Apache-2.0
"""GGUF files of the tiny checkpoints, written as llama.cpp's converter writes them.

  llama3-f16.gguf             query and key rows permuted, "rope_freqs.weight" instead of rope keys
  llama2-q8_0-0000N-of-00002  the same permutation, Q8_0, in two files
  gemma3-f16.gguf             norms stored as 1 + w, no window pattern, no local rope base

Their goldens come from transformers with the values the file holds (quantised, then dequantised).
"""

import json
import math
from pathlib import Path

import gguf
import numpy as np
import torch

from . import families, reference

_HF_TO_GGUF = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}


def _gguf_name(name: str, arch: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{_HF_TO_GGUF[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    if part == "post_attention_layernorm":
        return f"blk.{layer}." + ("post_attention_norm" if arch == "gemma3" else "ffn_norm") + \
            f".{suffix}"
    return f"blk.{layer}.{_HF_TO_GGUF[part]}.{suffix}"


def _permute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """The converter's order of Llama's query and key rows: (i, i + head_dim / 2) side by side."""
    shape = rows.shape
    return rows.reshape(num_heads, 2, shape[0] // num_heads // 2, *shape[1:]).swapaxes(1, 2) \
        .reshape(shape)


def _rope_factors(config) -> np.ndarray:
    """Per-pair frequency divisors of Llama 3's scaling."""
    rope = config.rope_parameters
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(0, config.head_dim, 2):
        turns = original * rope["rope_theta"] ** (-i / config.head_dim) / (2 * math.pi)
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def _add_config(writer: gguf.GGUFWriter, config, arch: str) -> None:
    writer.add_name(f"tiny {arch}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if arch == "gemma3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocab_size: int, arch: str) -> None:
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = [f"<unused{i}>" for i in range(vocab_size)]
    types = [gguf.TokenType.UNUSED] * vocab_size
    for token, index in saved["model"]["vocab"].items():
        is_byte = token.startswith("<0x") and saved["model"].get("byte_fallback")
        tokens[index] = token
        types[index] = gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL
    for added in saved["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    eos = config["eos_token_id"]
    if saved["model"].get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([float(-i) for i in range(vocab_size)])
        writer.add_add_space_prefix(arch != "gemma3")
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_merges([" ".join(merge) for merge in saved["model"]["merges"]])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    writer.add_add_bos_token(True)


def _write(
    path: Path, folder: Path, arch: str, dtype: gguf.GGMLQuantizationType, **split
) -> object:
    """Writes one file (or a split set) and returns the model that holds the file's values."""
    model = reference.load_folder(folder)
    config = model.config
    if arch == "gemma3":  # The format has no key for query_pre_attn_scalar: readers take head_dim.
        for layer in model.model.layers:
            layer.self_attn.scaling = config.head_dim ** -0.5
    writer = gguf.GGUFWriter(path, arch, **split)
    _add_config(writer, config, arch)
    _add_tokenizer(writer, folder, config.vocab_size, arch)
    if getattr(config, "rope_parameters", {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(config))
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if values.ndim == 1:
            stored = values + 1.0 if arch == "gemma3" and "norm" in name else values
            writer.add_tensor(_gguf_name(name, arch), stored.astype(np.float32))
            continue
        data = gguf.quants.quantize(values, dtype)
        back = gguf.quants.dequantize(data, dtype).astype(np.float32).reshape(values.shape)
        parameter.data.copy_(torch.from_numpy(back))
        stored = values
        if arch == "llama" and "q_proj" in name:
            stored = _permute(values, config.num_attention_heads)
        elif arch == "llama" and "k_proj" in name:
            stored = _permute(values, config.num_key_value_heads)
        writer.add_tensor(_gguf_name(name, arch), gguf.quants.quantize(stored, dtype),
                          raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def make_files(out: Path, data: Path, token_ids_for, positions) -> None:
    """Writes the files and NAME.json / NAME.f32 beside them."""
    out.mkdir(parents=True, exist_ok=True)
    kinds = gguf.GGMLQuantizationType
    jobs = [("llama3-f16", "llama3-f16.gguf", "tiny-llama3", "llama", kinds.F16, {}),
            ("llama2-q8_0", "llama2-q8_0-00001-of-00002.gguf", "tiny-llama2", "llama", kinds.Q8_0,
             {"split_max_tensors": 15}),
            ("gemma3-f16", "gemma3-f16.gguf", "tiny-gemma3", "gemma3", kinds.F16, {})]
    for name, file, base, arch, dtype, split in jobs:
        for old in out.glob(f"{name}*.gguf"):
            old.unlink()
        model = _write(out / f"{name}.gguf", data / base, arch, dtype, **split)
        assert (out / file).exists(), file
        ids = token_ids_for(model.config.vocab_size)
        logits = reference.logits_of(model, ids)
        np.ascontiguousarray(logits[positions], dtype="<f4").tofile(out / f"{name}.f32")
        families.write_json(out / f"{name}.json", {
            "name": name, "file": file, "seed": families.SEED, "versions": reference.versions(),
            "reference": "transformers, float32, eager attention, with the file's values",
            "vocab_size": model.config.vocab_size,
            "logit_range": [float(logits.min()), float(logits.max())],
            "token_ids": ids, "positions": positions, "logits_file": f"{name}.f32"})
        print(f"{name}: {sum(f.stat().st_size for f in out.glob(name + '*')) / 1024:.0f} KiB")
