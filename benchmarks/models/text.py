"""Transformers' architectures from small configurations, in training mode, with dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.models import CLASSES, ROWS, TOKENS, Subject, images, sentences

WIDTHS = {"hidden_size": 32, "intermediate_size": 64}
DEPTHS = {"num_hidden_layers": 2, "num_attention_heads": 4}
USUAL = {"vocab_size": TOKENS, "max_position_embeddings": 40, **WIDTHS, **DEPTHS}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
TWO_STACKS = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_layerdrop": 0.1},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_layerdrop": 0.1},
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "attention_dropout": 0.1},
}


def made(config: str, model: str, **options: object) -> nn.Module:
    """Make a model of a configuration, both by name."""
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options)).double()


def next_token(net: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the loss of a language model, padding left out."""
    labels = ids.masked_fill(mask == 0, -100)
    return net(input_ids=ids, attention_mask=mask, labels=labels).loss


def masked_token(net: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the loss of tokens that are hidden from the model, drawn as its collator does."""
    hidden = torch.bernoulli(torch.full(ids.shape, 0.3)).bool() & (mask == 1)
    labels = ids.masked_fill(~hidden, -100)
    return net(input_ids=ids.masked_fill(hidden, 2), attention_mask=mask, labels=labels).loss


def label(net: nn.Module, ids: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    """Return the loss of one label for a sentence or for each token."""
    return net(input_ids=ids, attention_mask=mask, labels=y).loss


def language(loss: Callable[..., Tensor], config: str, model: str, **options: object) -> Subject:
    """Train on padded sentences."""
    return Subject(made(config, model, **options), TensorDataset(*sentences()), loss)


def labelled(config: str, model: str, shape: tuple[int, ...] = (), **options: Any) -> Subject:
    """Train on padded sentences with labels."""
    net = made(config, model, num_labels=CLASSES, **options)
    y = torch.randint(options.get("labels", CLASSES), (ROWS, *shape))
    return Subject(net, TensorDataset(*sentences(), y), label)


def detected() -> Subject:
    """Tell replaced tokens, as ELECTRA's discriminator does."""
    net = made("ElectraConfig", "ElectraForPreTraining", embedding_size=16, **USUAL)
    ids, mask = sentences()
    return Subject(net, TensorDataset(ids, mask, torch.randint(2, ids.shape)), label)


def vit() -> Subject:
    drops = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    sizes = {"image_size": 32, "patch_size": 8, "num_labels": CLASSES}
    net = made("ViTConfig", "ViTForImageClassification", **WIDTHS, **DEPTHS, **sizes, **drops)
    return images(net, 32, lambda net, x, y: net(pixel_values=x, labels=y).loss)


def whisper() -> Subject:
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"vocab_size": TOKENS, "num_mel_bins": 8, "max_source_positions": 20}
    net = made(
        *("WhisperConfig", "WhisperForConditionalGeneration"),
        **{**sizes, **marks, **TWO_STACKS, "max_target_positions": 30, "dropout": 0.1},
    )
    data = TensorDataset(torch.randn(ROWS, 8, 40), sentences()[0])
    return Subject(net, data, lambda net, x, y: net(input_features=x, labels=y).loss)


def wav2vec2() -> Subject:
    """Train on sound with CTC, layers dropped and parts of the features masked."""
    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
    positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    masks = {"mask_time_length": 2, "mask_time_prob": 0.2, "layerdrop": 0.1}
    net = made(
        *("Wav2Vec2Config", "Wav2Vec2ForCTC"),
        **{**WIDTHS, **DEPTHS, **convolutions, **positions, **masks, "vocab_size": 20},
        **{"ctc_zero_infinity": True, "ctc_loss_reduction": "mean"},
    )
    data = TensorDataset(torch.randn(ROWS, 800), torch.randint(1, 20, (ROWS, 5)))
    return Subject(net, data, lambda net, x, y: net(input_values=x, labels=y).loss)


MODELS: dict[str, Callable[[], Subject]] = {
    "hf gpt2": partial(
        *(language, next_token, "GPT2Config", "GPT2LMHeadModel"),
        **{"vocab_size": TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
    ),
    "hf gpt2 eager": partial(
        *(language, next_token, "GPT2Config", "GPT2LMHeadModel"),
        **{"vocab_size": TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
        attn_implementation="eager",
    ),
    "hf llama": partial(
        *(language, next_token, "LlamaConfig", "LlamaForCausalLM"),
        **{**USUAL, "num_key_value_heads": 2, "attention_dropout": 0.1},
    ),
    "hf mistral": partial(
        *(language, next_token, "MistralConfig", "MistralForCausalLM"),
        **{**USUAL, "num_key_value_heads": 2, "sliding_window": 4, "attention_dropout": 0.1},
    ),
    "hf qwen2": partial(
        *(language, next_token, "Qwen2Config", "Qwen2ForCausalLM"),
        **{**USUAL, "num_key_value_heads": 2},
    ),
    "hf opt": partial(
        *(language, next_token, "OPTConfig", "OPTForCausalLM"),
        **{"vocab_size": TOKENS, "hidden_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32},
        **{**DEPTHS, "max_position_embeddings": 40},
    ),
    "hf bert": partial(language, masked_token, "BertConfig", "BertForMaskedLM", **USUAL),
    "hf bert classifier": partial(labelled, "BertConfig", "BertForSequenceClassification", **USUAL),
    "hf roberta": partial(
        *(labelled, "RobertaConfig", "RobertaForTokenClassification", (12,)), **USUAL
    ),
    "hf distilbert": partial(
        *(language, masked_token, "DistilBertConfig", "DistilBertForMaskedLM"),
        **{"vocab_size": TOKENS, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    ),
    "hf albert": partial(
        *(labelled, "AlbertConfig", "AlbertForSequenceClassification"),
        **{
            **USUAL,
            "embedding_size": 16,
            "hidden_dropout_prob": 0.1,
            "classifier_dropout_prob": 0.1,
        },
    ),
    "hf electra": detected,
    "hf t5": partial(
        *(language, next_token, "T5Config", "T5ForConditionalGeneration"),
        **{**T5, "vocab_size": TOKENS, "decoder_start_token_id": 0},
    ),
    "hf bart": partial(
        *(language, next_token, "BartConfig", "BartForConditionalGeneration"),
        **{**TWO_STACKS, "vocab_size": TOKENS, "max_position_embeddings": 40},
    ),
    "hf vit": vit,
    "hf whisper": whisper,
    "hf wav2vec2": wav2vec2,
}
