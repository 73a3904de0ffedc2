"""Direct preference optimization of a small GPT-2 with TRL."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer

set_seed(0)
names = ["<pad>", "</s>", "<unk>", "the", "sky", "grass", "is", "blue", "green", "red", "very"]
words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
)
right = {"sky": "blue", "grass": "green"}
rows = [
    {"prompt": f"the {thing} is", "chosen": " very" * n + f" {colour}", "rejected": " very" * m + " red"}
    for thing, colour in right.items()
    for n in range(4)
    for m in range(4)
]
config = GPT2Config(
    vocab_size=len(names), n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1,
)  # fmt: skip
model, reference = GPT2LMHeadModel(config).double(), GPT2LMHeadModel(config).double()
reference.load_state_dict(model.state_dict())
trainer = DPOTrainer(
    model=model, ref_model=reference, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
    args=DPOConfig(
        "out", num_train_epochs=2, per_device_train_batch_size=8, learning_rate=5e-3, beta=0.1,
        logging_steps=2, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        gradient_checkpointing=False, disable_tqdm=True,
    ),
)  # fmt: skip
trainer.train()
for entry in trainer.state.log_history:
    print({name: value for name, value in entry.items() if "reward" in name or name == "loss"})
trainer.save_model("final")
