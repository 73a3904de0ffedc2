"""Fine-tuning of a small BERT with the Trainer: evaluation, early stopping, resuming."""

import os

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

os.environ["TENSORBOARD_LOGGING_DIR"] = "logs"
set_seed(0)
names = ["[PAD]", "[UNK]", "good", "bad", "film", "book", "very", "not", "a"]
words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
draw = np.random.default_rng(0)
texts = [" ".join(draw.choice(names[2:], draw.integers(3, 9))) for _ in range(96)]
labels = [int(text.count("good") > text.count("bad")) for text in texts]
data = Dataset.from_dict({"text": texts, "label": labels})
data = data.map(lambda row: tokenizer(row["text"], truncation=True), batched=True)
data = data.train_test_split(test_size=0.25, seed=0)


def metrics(predicted):
    logits, wanted = predicted
    return {"accuracy": float((logits.argmax(-1) == wanted).mean())}


def trainer(epochs):
    config = BertConfig(
        vocab_size=len(names), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    arguments = TrainingArguments(
        "out", num_train_epochs=epochs, learning_rate=5e-3, warmup_steps=2, use_cpu=True,
        per_device_train_batch_size=16, per_device_eval_batch_size=16, logging_steps=3,
        eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
        metric_for_best_model="eval_loss", report_to="tensorboard",
    )  # fmt: skip
    return Trainer(
        BertForSequenceClassification(config).double(), arguments,
        train_dataset=data["train"], eval_dataset=data["test"], compute_metrics=metrics,
        data_collator=DataCollatorWithPadding(tokenizer), processing_class=tokenizer,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
    )  # fmt: skip


first = trainer(2)
first.train()
second = trainer(5)
second.train(resume_from_checkpoint=get_last_checkpoint("out"))
print(second.state.epoch, second.state.best_metric, second.state.best_model_checkpoint)
print(second.evaluate()["eval_loss"], second.predict(data["test"]).predictions[:2].tolist())
second.save_model("final")
