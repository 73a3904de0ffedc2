"""Low-rank adapters for a small GPT-2, which are merged at the end."""

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


def loss_function(logits, labels, **_):  # the library's own is in float32
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


torch.manual_seed(0)
config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
base = GPT2LMHeadModel(config).double()
base.loss_function = loss_function
base.save_pretrained("base")
lora = LoraConfig(
    task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=16, lora_dropout=0.1, target_modules=["c_attn"],
    fan_in_fan_out=True,
)  # fmt: skip
model = get_peft_model(base, lora)
model.print_trainable_parameters()
start = torch.randint(0, 32, (64, 1))
data = (start + torch.arange(12)) % 32
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for ids in DataLoader(data, batch_size=16, shuffle=True):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, loss.item())
model.save_pretrained("adapter")
base = GPT2LMHeadModel.from_pretrained("base", dtype=torch.float64)
merged = PeftModel.from_pretrained(base, "adapter").merge_and_unload()
print(merged(data[:4]).logits.sum().item(), sorted(dict(merged.named_parameters()))[:3])
print(merged.generate(data[:2, :4], max_new_tokens=4, do_sample=False, pad_token_id=0).tolist())
