# SPDX-License-Identifier: Apache-2.0
"""The reference: transformers on the CPU in f32 with eager attention.

`load_folder` runs a Hugging Face folder, `load_gguf` the weights of a GGUF file dequantised by the
`gguf` package. Nothing is left to a loader's guess: every tensor of the file must find its
parameter and every parameter its tensor, and a file's own output.weight is used even if the
family usually ties it to the embeddings.
"""

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()


def versions() -> dict:
    names = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def load_folder(folder: Path):
    """A folder's model in f32 with eager attention."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(model, token_ids) -> np.ndarray:
    """[len(token_ids), vocab_size] f32, one forward pass over the whole sequence."""
    return model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def log_probs_of(model, token_ids) -> np.ndarray:
    """[len(token_ids), vocab_size] natural log probabilities, f32 (normalised in f64)."""
    logits = model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), dim=-1).float().numpy()


# --- GGUF -----------------------------------------------------------------------------------------

# GGUF tensor name within a block -> parameter name within a transformers layer.
_BLOCK_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
_FFN_NORM = {"gemma3": "pre_feedforward_layernorm"}  # others: post_attention_layernorm
_GEMMA_POST_NORMS = {"post_attention_norm": "post_attention_layernorm",
                     "post_ffw_norm": "post_feedforward_layernorm"}


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 24):
            digest.update(chunk)
    return digest.hexdigest()


def fields_of(reader: gguf.GGUFReader) -> dict:
    """Scalar and string metadata (arrays are skipped)."""
    return {name: field.contents() for name, field in reader.fields.items()
            if field.types and field.types[0] != gguf.GGUFValueType.ARRAY}


def _config_of(fields: dict, reader: gguf.GGUFReader):
    arch = fields["general.architecture"]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    vocab_size = int(tensors["token_embd.weight"].shape[1])
    heads = fields[f"{arch}.attention.head_count"]
    hidden = fields[f"{arch}.embedding_length"]
    common = dict(
        vocab_size=vocab_size, hidden_size=hidden, num_attention_heads=heads,
        intermediate_size=fields[f"{arch}.feed_forward_length"],
        num_hidden_layers=fields[f"{arch}.block_count"],
        num_key_value_heads=fields.get(f"{arch}.attention.head_count_kv", heads),
        head_dim=fields.get(f"{arch}.attention.key_length", hidden // heads),
        max_position_embeddings=fields[f"{arch}.context_length"],
        rms_norm_eps=fields[f"{arch}.attention.layer_norm_rms_epsilon"],
        tie_word_embeddings="output.weight" not in tensors)
    if any(key.startswith(f"{arch}.rope.scaling.") for key in fields):
        raise NotImplementedError("rope scaling of a GGUF file")
    if arch in ("qwen2", "qwen3", "llama"):
        return AutoConfig.for_model(
            arch, rope_theta=fields.get(f"{arch}.rope.freq_base", 10000.0), **common)
    if arch == "gemma3":
        if common["num_hidden_layers"] == 62:
            raise NotImplementedError("the 27B scale")
        return AutoConfig.for_model(
            "gemma3_text", rope_theta=fields.get("gemma3.rope.freq_base", 1e6),
            rope_local_base_freq=fields.get("gemma3.rope.freq_base_local", 1e4),
            sliding_window=fields["gemma3.attention.sliding_window"], sliding_window_pattern=6,
            query_pre_attn_scalar=common["head_dim"], **common)
    raise NotImplementedError(f"architecture {arch}")


def _parameter_name(arch: str, name: str) -> str:
    if name in ("token_embd.weight", "output_norm.weight", "output.weight"):
        return {"token_embd.weight": "model.embed_tokens.weight",
                "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}[name]
    _, layer, stem, suffix = name.split(".")
    if stem == "ffn_norm":
        stem = _FFN_NORM.get(arch, "post_attention_layernorm")
    elif stem in _GEMMA_POST_NORMS:
        stem = _GEMMA_POST_NORMS[stem]
    else:
        stem = _BLOCK_NAMES[stem]
    return f"model.layers.{layer}.{stem}.{suffix}"


def _unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undoes the converter's order of Llama's query and key rows (pairs side by side)."""
    shape = rows.shape
    return rows.reshape(num_heads, shape[0] // num_heads // 2, 2, *shape[1:]).swapaxes(1, 2) \
        .reshape(shape)


def load_gguf(path: Path):
    """The file's model in f32 with eager attention, each weight dequantised by the gguf package."""
    reader = gguf.GGUFReader(path)
    fields = fields_of(reader)
    arch = fields["general.architecture"]
    config = _config_of(fields, reader)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32,
                                                 attn_implementation="eager")
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        if arch == "llama" and ".attn_q.weight" in tensor.name:
            values = _unpermute(values, config.num_attention_heads)
        if arch == "llama" and ".attn_k.weight" in tensor.name:
            values = _unpermute(values, config.num_key_value_heads)
        if arch == "gemma3" and tensor.name.endswith("norm.weight"):
            values = values - 1.0  # The converter stores 1 + w; transformers adds the 1 itself.
        state[_parameter_name(arch, tensor.name)] = torch.from_numpy(np.ascontiguousarray(values))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(state, strict=True, assign=True)
    assert not missing and not unexpected
    _restore_buffers(model, config)
    return model.eval()


def _restore_buffers(model, config) -> None:
    """Non-persistent buffers (inverse frequencies, embedding scale) are no part of a state dict."""
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    embedding = model.model.embed_tokens
    if hasattr(embedding, "scalar_embed_scale"):
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
    for name, buffer in model.named_buffers():
        assert not buffer.is_meta, name
