"""OpenCLIP: train a small CLIP on pairs of images and captions, then classify without examples."""

import open_clip
import torch
from open_clip import CLIP, ClipLoss
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
colors = ["red", "green", "blue"]
tokenizer = open_clip.SimpleTokenizer(context_length=16)
model = CLIP(
    embed_dim=32,
    vision_cfg={"layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32},
    text_cfg={"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2},
    output_dict=True,
).double()
preprocess = open_clip.image_transform(32, is_train=False)
print(preprocess.transforms[-1])
labels = torch.arange(42) % 3
images = 0.3 * torch.randn(42, 3, 32, 32, dtype=torch.float64)
images[torch.arange(42), labels] += 1
texts = tokenizer([f"a photo of a {colors[i]} square, number {n}" for n, i in enumerate(labels)])
loader = DataLoader(TensorDataset(images, texts), batch_size=12, shuffle=True)
clip_loss = ClipLoss()
gains = [p for n, p in model.named_parameters() if p.ndim < 2 or "bias" in n]
rest = [p for n, p in model.named_parameters() if p.ndim >= 2 and "bias" not in n]
optimizer = torch.optim.AdamW([
    {"params": gains, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.2},
], lr=2e-3)  # fmt: skip
for epoch in range(3):
    for image, text in loader:
        out = model(image, text)
        loss = clip_loss(**out)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
        print(f"{epoch} loss {loss.item():.10f} scale {out['logit_scale'].item():.10f}")
model.eval()
with torch.no_grad():
    classes = model.encode_text(tokenizer([f"a photo of a {c} square" for c in colors]), True)
    probabilities = (100 * model.encode_image(images, normalize=True) @ classes.T).softmax(-1)
print(f"{(probabilities.argmax(1) == labels).double().mean().item():.6f}")
torch.save({"epoch": 3, "state_dict": model.state_dict()}, "epoch_3.pt")
