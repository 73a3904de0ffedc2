"""Train a small character-level transformer on Python's own standard library, then let it write.

    python char_lm.py
    python char_lm.py --steps 200 --out runs/char_lm

Needs no download: the text is the source of the interpreter that runs this. Leaves the best
checkpoint and the learning curve in runs/char_lm.
"""

import argparse
import math
import os
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

try:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
except ImportError:
    plt = None  # no picture then

# data
max_chars = 1_000_000
block_size = 64
batch_size = 32
# model
n_layer = 2
n_head = 4
n_embd = 64
dropout = 0.1
# optimizer
learning_rate = 2e-3
min_lr = 2e-4
warmup_steps = 20
weight_decay = 0.1
grad_clip = 1.0
# evaluation
eval_interval = 50
eval_batches = 5
sample_chars = 200


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(n_embd, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.drop(self.proj(y))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.GELU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight  # weight tying

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.ln_f(self.blocks(self.wte(idx) + self.wpe(pos)))
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None  # the last position is all we sample from
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, n):
        for _ in range(n):
            logits, _ = self(idx[:, -block_size:])
            probs = F.softmax(logits[:, -1, :], dim=-1)
            idx = torch.cat((idx, torch.multinomial(probs, num_samples=1)), dim=1)
        return idx


def load_text():
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="ignore")
        if len(text) > max_chars:
            break
    return "".join(c for c in text[:max_chars] if c.isascii())


def get_batch(data, device):
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


@torch.no_grad()
def estimate_loss(model, splits, device):
    out = {}
    model.eval()
    for name, data in splits.items():
        losses = torch.zeros(eval_batches)
        for k in range(eval_batches):
            _, loss = model(*get_batch(data, device))
            losses[k] = loss.item()
        out[name] = losses.mean().item()
    model.train()
    return out


def get_lr(step, steps):
    if step < warmup_steps:
        return learning_rate * (step + 1) / warmup_steps
    ratio = (step - warmup_steps) / max(1, steps - warmup_steps)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", default="runs/char_lm")
    args = parser.parse_args()

    torch.manual_seed(1337)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(args.out, exist_ok=True)

    text = load_text()
    chars = sorted(set(text))
    stoi = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([stoi[c] for c in text])
    n = int(0.9 * len(data))
    splits = {"train": data[:n], "val": data[n:]}
    print(f"{len(data)} characters, {len(chars)} different")

    model = GPT(len(chars)).to(device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    decay = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)

    history, best = [], float("inf")
    for step in range(args.steps + 1):
        if step % eval_interval == 0 or step == args.steps:
            losses = estimate_loss(model, splits, device)
            print(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
            history.append((step, losses["train"], losses["val"]))
            if losses["val"] < best:
                best = losses["val"]
                checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**checkpoint, "step": step}, os.path.join(args.out, "ckpt.pt"))
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step, args.steps)
        _, loss = model(*get_batch(splits["train"], device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()

    if plt is not None:
        steps, train, val = zip(*history, strict=True)
        plt.plot(steps, train, label="train")
        plt.plot(steps, val, label="validation")
        plt.xlabel("step")
        plt.ylabel("nats per character")
        plt.legend()
        plt.savefig(os.path.join(args.out, "curve.png"))

    model.eval()
    prompt = torch.tensor([[stoi[c] for c in "def "]], device=device)
    print("".join(chars[i] for i in model.generate(prompt, sample_chars)[0].tolist()))


if __name__ == "__main__":
    main()
