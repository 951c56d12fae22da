# SPDX-License-Identifier: Apache-2.0
"""Small tokenizer.json and tokenizer_config.json files in the form of each family's published ones.

Trained on a page of public-domain text; what matters is the structure (pre-tokenizer, normaliser,
byte fallback, special tokens), so that the folder loads like a real one.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

from .families import write_json

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_PATTERN = QWEN_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

BYTE_LEVEL = {
    "tiny-qwen2": (QWEN_PATTERN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    "tiny-qwen3": (QWEN_PATTERN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    "tiny-llama3": (LLAMA3_PATTERN, ["<|begin_of_text|>", "<|end_of_text|>",
                                     "<|start_header_id|>", "<|eot_id|>", "<|end_header_id|>"]),
}
SENTENCEPIECE = {
    "tiny-llama2": ["<unk>", "<s>", "</s>"],
    "tiny-mistral": ["<unk>", "<s>", "</s>"],
    "tiny-gemma3": ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"],
}
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def _byte_level(name: str, vocab_size: int, text: str) -> Tokenizer:
    pattern, specials = BYTE_LEVEL[name]
    tokenizer = Tokenizer(models.BPE())
    if "qwen" in name:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=specials, show_progress=False))
    if "llama3" in name:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                          special_tokens=[("<|begin_of_text|>", 0)])])
    return tokenizer


def _sentencepiece(name: str, vocab_size: int, text: str) -> Tokenizer:
    specials = SENTENCEPIECE[name]
    gemma = "gemma" in name
    space = "\u2581"
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(f"(?={space})"), "isolated")
    learner.train_from_iterator(
        [text.replace(" ", space)],
        trainers.BpeTrainer(vocab_size=vocab_size - len(specials) - 256, show_progress=False))
    learnt = _parse(learner)
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].get)
    tokens = specials + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    tokenizer = Tokenizer(models.BPE(
        {token: index for index, token in enumerate(tokens)},
        [tuple(merge) for merge in learnt["merges"]], unk_token="<unk>", byte_fallback=True,
        fuse_unk=True))
    replace = normalizers.Replace(" ", space)
    tokenizer.normalizer = replace if gemma else normalizers.Sequence(
        [normalizers.Prepend(space), replace])
    back = [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(back if gemma else [*back, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    bos = "<bos>" if gemma else "<s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))])
    return tokenizer


def _parse(tokenizer: Tokenizer) -> dict:
    return json.loads(tokenizer.to_str())["model"]


def make_tokenizer(folder: Path, name: str, vocab_size: int, text: str) -> None:
    """Writes tokenizer.json and tokenizer_config.json with exactly vocab_size tokens or fewer."""
    byte_level = name in BYTE_LEVEL
    tokenizer = (_byte_level if byte_level else _sentencepiece)(name, vocab_size, text)
    assert tokenizer.get_vocab_size() <= vocab_size
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {"model_max_length": 4096, "clean_up_tokenization_spaces": False}
    if "qwen" in name:
        config |= dict(tokenizer_class="Qwen2Tokenizer", bos_token=None, eos_token="<|im_end|>",
                       pad_token="<|endoftext|>", add_bos_token=False, chat_template=CHATML)
    elif "llama3" in name:
        config |= dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|begin_of_text|>",
                       eos_token="<|end_of_text|>")
    elif "gemma" in name:
        config |= dict(tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>",
                       unk_token="<unk>", pad_token="<pad>", add_bos_token=True)
    else:
        config |= dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>",
                       unk_token="<unk>", add_bos_token=True, add_eos_token=False, legacy=False)
    write_json(folder / "tokenizer_config.json", config)
