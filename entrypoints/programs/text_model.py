"""Tokenizer and model of a text classifier: pretrained, or a small BERT made from the data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# Sizes of configurations that need no download; the rest of BertConfig keeps its defaults.
PRESETS = {
    "tiny-bert": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2},
    "mini-bert": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4},
    "small-bert": {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8},
}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> str:
    """A lower-casing WordPiece tokenizer learnt from `texts`, as the JSON of ``tokenizers``."""
    lib: Any = import_module("tokenizers")
    tokenizer = lib.Tokenizer(lib.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = lib.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = lib.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = lib.decoders.WordPiece()
    trainer = lib.trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    marks = {token: tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = lib.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=list(marks.items()),
    )
    return str(tokenizer.to_str())


def tokenizer_from_json(text: str, max_length: int) -> Any:
    """A ``transformers`` tokenizer around what `train_tokenizer` returned."""
    tokenizer = import_module("tokenizers").Tokenizer.from_str(text)
    return _transformers().BertTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, do_lower_case=True
    )


def _transformers() -> Any:
    """Untyped: its annotations are partial, and it is heavy to import."""
    return import_module("transformers")


def be_quiet() -> None:
    """Leave the library's remarks to rank 0."""
    _transformers().logging.set_verbosity_error()


def load_tokenizer(name_or_path: str) -> Any:
    return _transformers().AutoTokenizer.from_pretrained(name_or_path, use_fast=True)


def build_model(
    name_or_path: str,
    *,
    from_scratch: bool,
    label_names: Sequence[str],
    vocab_size: int,
    max_length: int,
    sizes: dict[str, int],
) -> Any:
    """The classifier, with eager attention: torch_xla 2.9 reads the device back in sdpa's masks.

    `sizes` overrides a fresh model's configuration; a pretrained one has its own.
    """
    hf = _transformers()
    auto = hf.AutoModelForSequenceClassification
    labels = {
        "id2label": dict(enumerate(label_names)),
        "label2id": {name: i for i, name in enumerate(label_names)},
        "attn_implementation": "eager",
    }
    if not from_scratch:
        return auto.from_pretrained(name_or_path, **labels)
    if name_or_path in PRESETS:
        sizes = PRESETS[name_or_path] | sizes
        sizes.setdefault("intermediate_size", 4 * sizes["hidden_size"])
        positions = max(max_length, 64)
        config = hf.BertConfig(vocab_size=vocab_size, max_position_embeddings=positions, **sizes)
        config.update({k: v for k, v in labels.items() if k != "attn_implementation"})
    else:
        config = hf.AutoConfig.from_pretrained(name_or_path, **labels, **sizes)
    return auto.from_config(config, attn_implementation="eager")


def save(model: Any, tokenizer: Any, state: dict[str, Any], directory: Path) -> None:
    """What ``AutoModelForSequenceClassification.from_pretrained(directory)`` loads."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, state_dict=state)
    tokenizer.save_pretrained(directory)


def write_metrics(directory: Path, metrics: dict[str, float]) -> None:
    """``metrics.json``, beside the model rather than in it."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(metrics, indent=2, sort_keys=True) + "\n"
    (directory / "metrics.json").write_text(text, encoding="utf-8")
