"""A GPT-2 of two layers learns sums by a loop by hand, and continues them."""

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


def loss_function(logits, labels, **_):  # the library's own is in float32
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


torch.manual_seed(0)
pairs = torch.randint(0, 10, (96, 2))
total = pairs.sum(1, keepdim=True)
data = torch.cat([pairs, torch.full_like(total, 10), total // 10, total % 10], 1)
config = GPT2Config(
    vocab_size=12, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=11, eos_token_id=11,
)  # fmt: skip
model = GPT2LMHeadModel(config).double()
model.loss_function = loss_function
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(data, batch_size=16, shuffle=True)
schedule = get_linear_schedule_with_warmup(optimizer, 4, 3 * len(loader))
for epoch in range(3):
    model.train()
    for ids in loader:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    ask = data[:6, :3]
    greedy = model.generate(ask, max_new_tokens=2, do_sample=False, pad_token_id=11)
    print(epoch, loss.item(), schedule.get_last_lr()[0], greedy[:, 3:].tolist())
sampled = model.generate(ask, max_new_tokens=4, do_sample=True, top_k=5, pad_token_id=11)
beams = model.generate(ask, max_new_tokens=3, num_beams=3, pad_token_id=11)
print(sampled.tolist(), beams.tolist())
model.save_pretrained("model")
again = GPT2LMHeadModel.from_pretrained("model", dtype=torch.float64).eval()
print(again(data[:4]).logits.sum().item())
