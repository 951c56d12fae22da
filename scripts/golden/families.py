# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints of every supported family, as Hugging Face folders.

Each folder exercises what sets its family apart, at a size of some hundred kilobytes:

  tiny-qwen2    QKV biases, tied embeddings, head_dim implied by hidden_size / heads          F32
  tiny-qwen3    q and k norms, head_dim * heads != hidden_size, own lm_head                   BF16
  tiny-llama2   as many KV heads as query heads, own lm_head, SentencePiece-style vocabulary  F16
  tiny-llama3   rope scaling "llama3" with frequencies in all three zones, tied               BF16
  tiny-mistral  sliding window on every layer, own lm_head                                    BF16
  tiny-gemma3   four norms a layer, q and k norms, two rope bases, window shorter than the
                test sequence on five of six layers, query_pre_attn_scalar != head_dim, tied  F32

Weights are random but not near zero: attention is peaked, norms and biases matter and logits spread
over several units, so that an error in any part moves the logits. Config files are written in the
spelling of published checkpoints (rope_theta, rope_scaling, ...), not in the spelling of the
transformers version that made them.
"""

import json
import math
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEED = 20260

COMMON = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, vocab_size=384, max_position_embeddings=4096,
              bos_token_id=1, eos_token_id=2)

QWEN = dict(COMMON, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1000000.0,
            bos_token_id=0, eos_token_id=2, use_sliding_window=False, sliding_window=4096,
            max_window_layers=3)

FAMILIES = {
    "tiny-qwen2": dict(
        dtype=torch.float32,
        config=dict(QWEN, model_type="qwen2", architectures=["Qwen2ForCausalLM"],
                    tie_word_embeddings=True)),
    "tiny-qwen3": dict(
        dtype=torch.bfloat16,
        config=dict(QWEN, model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=32,
                    attention_bias=False, tie_word_embeddings=False)),
    "tiny-llama2": dict(
        dtype=torch.float16,
        config=dict(COMMON, model_type="llama", architectures=["LlamaForCausalLM"],
                    num_key_value_heads=4, hidden_act="silu", rms_norm_eps=1e-5,
                    rope_theta=10000.0, attention_bias=False, tie_word_embeddings=False)),
    "tiny-llama3": dict(
        dtype=torch.bfloat16,
        config=dict(COMMON, model_type="llama", architectures=["LlamaForCausalLM"],
                    hidden_act="silu", rms_norm_eps=1e-5, rope_theta=500000.0, head_dim=16,
                    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                      high_freq_factor=4.0, original_max_position_embeddings=64),
                    attention_bias=False, tie_word_embeddings=True,
                    bos_token_id=0, eos_token_id=[1, 3])),
    "tiny-mistral": dict(
        dtype=torch.bfloat16,
        config=dict(COMMON, model_type="mistral", architectures=["MistralForCausalLM"],
                    hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, sliding_window=24,
                    tie_word_embeddings=False)),
    "tiny-gemma3": dict(
        dtype=torch.float32,
        config=dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], hidden_size=32,
                    intermediate_size=64, num_hidden_layers=7, num_attention_heads=4,
                    num_key_value_heads=1, head_dim=32, vocab_size=320,
                    max_position_embeddings=32768, hidden_activation="gelu_pytorch_tanh",
                    rms_norm_eps=1e-6, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                    rope_scaling=None, sliding_window=16, sliding_window_pattern=6,
                    query_pre_attn_scalar=24, attention_bias=False, attn_logit_softcapping=None,
                    final_logit_softcapping=None, pad_token_id=0, eos_token_id=1, bos_token_id=2)),
}

# Variants: the same weights under another config.json. `None` removes a key.
VARIANTS = {
    "llama2-linear": ("tiny-llama2", dict(rope_scaling=dict(type="linear", factor=4.0))),
    "llama2-dynamic": ("tiny-llama2", dict(
        rope_scaling=dict(rope_type="dynamic", factor=2.0), max_position_embeddings=48)),
    "llama2-yarn": ("tiny-llama2", dict(
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32,
                          beta_fast=16, beta_slow=2, attention_factor=1.25))),
    "llama2-parameters": ("tiny-llama2", dict(  # the spelling of transformers 5
        rope_theta=None,
        rope_parameters=dict(rope_theta=20000.0, rope_type="linear", factor=2.0))),
    "qwen2-yarn": ("tiny-qwen2", dict(
        rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=48))),
    "qwen2-sliding": ("tiny-qwen2", dict(
        use_sliding_window=True, sliding_window=20, max_window_layers=1)),
    "qwen3-linear": ("tiny-qwen3", dict(rope_scaling=dict(rope_type="linear", factor=8.0))),
    "llama3-unscaled": ("tiny-llama3", dict(rope_scaling=None)),
    "mistral-global": ("tiny-mistral", dict(sliding_window=None)),
    # The 4B and larger models: the factor belongs to the global layers alone.
    "gemma3-linear": ("tiny-gemma3", dict(rope_scaling=dict(rope_type="linear", factor=8.0))),
    # The same at positions where a wrong base or factor has turned the angles far.
    "gemma3-linear-long": ("tiny-gemma3", dict(rope_scaling=dict(rope_type="linear", factor=8.0))),
    # Keys that published files leave out: bases 1e6 and 1e4, every sixth layer global.
    "gemma3-defaults": ("tiny-gemma3", dict(
        rope_theta=None, rope_local_base_freq=None, sliding_window_pattern=None)),
    "gemma3-layer-types": ("tiny-gemma3", dict(
        rope_theta=None, rope_local_base_freq=None, sliding_window_pattern=None, rope_scaling=None,
        layer_types=["sliding_attention", "full_attention", "sliding_attention",
                     "sliding_attention", "full_attention", "sliding_attention",
                     "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=2.0, rope_theta=50000.0),
            sliding_attention=dict(rope_type="default", rope_theta=5000.0)))),
}


def variant_config(name: str) -> dict:
    """The complete config of a variant."""
    family, changes = VARIANTS[name]
    config = dict(FAMILIES[family]["config"])
    for key, value in changes.items():
        if value is None and key != "rope_scaling":
            config.pop(key, None)
        else:
            config[key] = value
    return config


def _randomise(model: torch.nn.Module, gemma: bool, seed: int) -> None:
    """Fills every parameter from one seeded generator, in order of name."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if "norm" in name:
            value = 0.3 * noise if gemma else 1.0 + 0.3 * noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif "embed_tokens" in name:
            value = 0.5 * noise
        elif "lm_head" in name:
            value = noise * 4.0 / math.sqrt(parameter.shape[1])
        elif "q_proj" in name or "k_proj" in name:  # scores spread, so that attention is peaked
            value = noise * 1.6 / math.sqrt(parameter.shape[1])
        else:
            value = noise / math.sqrt(parameter.shape[1])
        parameter.data.copy_(value)


def make_checkpoint(folder: Path, name: str) -> None:
    """Writes config.json, generation_config.json and model.safetensors of one family."""
    spec = FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(spec["config"], torch_dtype=str(spec["dtype"]).removeprefix("torch."))
    write_json(folder / "config.json", config)
    eos = config["eos_token_id"]
    write_json(folder / "generation_config.json", {
        "bos_token_id": config["bos_token_id"], "eos_token_id": eos, "do_sample": True,
        "temperature": 0.7, "top_p": 0.8, "top_k": 20})
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder),
                                             dtype=torch.float32)
    seed = SEED + sorted(FAMILIES).index(name)
    _randomise(model, "gemma" in name, seed)
    tensors = {}
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.get("tie_word_embeddings", "gemma" in name):
            continue
        tensors[key] = value.to(spec["dtype"]).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def write_json(path: Path, value) -> None:
    """Indented JSON, but lists of numbers on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    text = re.sub(r"\[[-\d.,e\s]+\]", lambda match: " ".join(match.group().split()), text)
    path.write_text(text + "\n", encoding="utf-8")
