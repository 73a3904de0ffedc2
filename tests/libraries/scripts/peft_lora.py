"""Low-rank adapters for a small Llama, which are merged at the end."""

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
)  # fmt: skip
base = LlamaForCausalLM(config).double()
base.save_pretrained("base")
lora = LoraConfig(
    task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"],
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
base = LlamaForCausalLM.from_pretrained("base", dtype=torch.float64)
merged = PeftModel.from_pretrained(base, "adapter").merge_and_unload()
print(merged(data[:4]).logits.sum().item(), sorted(dict(merged.named_parameters()))[:3])
print(merged.generate(data[:2, :4], max_new_tokens=4, do_sample=False).tolist())
