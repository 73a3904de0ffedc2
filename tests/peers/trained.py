"""Hugging Face's Trainer on a BERT: evaluation, two checkpoints kept, the best loaded, resuming."""

import os

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    num_labels=3,
)


class Words(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x = torch.randint(0, 50, (n, 6), generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "labels": self.x[i].sum() % 3}


def right(p):
    return {"right": float((p.predictions.argmax(1) == p.label_ids).mean())}


def train(start=None):
    model = BertForSequenceClassification(config).double()
    args = TrainingArguments(
        "out",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        num_train_epochs=2,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="right",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, args, train_dataset=Words(30), eval_dataset=Words(12), compute_metrics=right
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=start)
    for entry in trainer.state.log_history:
        print({k: v for k, v in entry.items() if "runtime" not in k and "per_second" not in k})
    print(trainer.evaluate()["eval_loss"], model.classifier.weight.tolist())
    return trainer


train().save_model("final")
train("out/" + min(os.listdir("out")))
for folder, _, files in sorted(os.walk(".")):
    print(folder, sorted(files))
