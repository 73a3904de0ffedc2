"""Supervised fine-tuning of a small Llama with TRL, through LoRA, on questions and answers."""

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
names = ["<pad>", "</s>", "<unk>", "what", "is", "plus", *map(str, range(20))]
words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
)
rows = [
    {"prompt": f"what is {a} plus {b}", "completion": f" {a + b}"} for a in range(8) for b in range(8)
]
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(names), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )
).double()  # fmt: skip
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        "out", num_train_epochs=2, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=4,
        gradient_accumulation_steps=2, max_length=16, use_cpu=True, bf16=False, report_to="none",
        eval_strategy="epoch", save_strategy="epoch", gradient_checkpointing=False, disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list(rows[:48]),
    eval_dataset=Dataset.from_list(rows[48:]),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
)  # fmt: skip
trainer.train()
print(trainer.evaluate()["eval_loss"])
trainer.save_model("final")
