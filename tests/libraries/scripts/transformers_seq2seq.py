"""A small T5 learns to reverse digits, with Seq2SeqTrainer and generated answers."""

import numpy as np
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors

set_seed(0)
names = ["<pad>", "</s>", *"0123456789"]
words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>")
draw = np.random.default_rng(0)
texts = ["".join(draw.choice(names[2:], draw.integers(2, 6))) for _ in range(80)]
rows = [
    {"input_ids": tokenizer(text)["input_ids"], "labels": tokenizer(text[::-1])["input_ids"]}
    for text in texts
]
config = T5Config(
    vocab_size=len(names), d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
    decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
)  # fmt: skip
model = T5ForConditionalGeneration(config).double()


def metrics(predicted):
    answers = np.where(predicted.predictions == -100, 0, predicted.predictions)
    wanted = np.where(predicted.label_ids == -100, 0, predicted.label_ids)
    pairs = zip(tokenizer.batch_decode(answers, True), tokenizer.batch_decode(wanted, True))
    return {"right": float(np.mean([a == b for a, b in pairs])), "length": answers.shape[1]}


arguments = Seq2SeqTrainingArguments(
    "out", num_train_epochs=2, learning_rate=5e-3, per_device_train_batch_size=16, use_cpu=True,
    per_device_eval_batch_size=8, eval_strategy="epoch", save_strategy="no", logging_steps=2,
    predict_with_generate=True, generation_max_length=8, report_to="none", disable_tqdm=True,
)  # fmt: skip
trainer = Seq2SeqTrainer(
    model, arguments, train_dataset=rows[:64], eval_dataset=rows[64:], compute_metrics=metrics,
    data_collator=DataCollatorForSeq2Seq(tokenizer, model), processing_class=tokenizer,
)  # fmt: skip
trainer.train()
answers = trainer.predict(rows[64:], num_beams=2).predictions
print(tokenizer.batch_decode(np.where(answers == -100, 0, answers), skip_special_tokens=True))
print([p.norm().item() for p in model.parameters()][:6])
trainer.save_model("final")
