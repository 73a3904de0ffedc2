"""Unconditional diffusion of small digits with diffusers: a U-Net, EMA weights, a pipeline."""

import numpy as np
import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from sklearn.datasets import load_digits

torch.manual_seed(0)
images = torch.tensor(load_digits().images[:64, None] / 8 - 1)
model = UNet2DModel(
    sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 16),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=4, attention_head_dim=8, dropout=0.1,
).double()
noises = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ema = EMAModel(model.parameters(), decay=0.9, use_ema_warmup=True)
loader = torch.utils.data.DataLoader(images, batch_size=16, shuffle=True)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 2 * len(loader))
for epoch in range(2):
    for clean in loader:
        noise = torch.randn_like(clean)
        at = torch.randint(0, noises.config.num_train_timesteps, (len(clean),))
        noisy = noises.add_noise(clean, noise, at)
        loss = torch.nn.functional.mse_loss(model(noisy, at).sample, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ema.step(model.parameters())
    print(epoch, loss.item(), schedule.get_last_lr()[0], ema.cur_decay_value)
ema.store(model.parameters())
ema.copy_to(model.parameters())
pipeline = DDPMPipeline(unet=model, scheduler=noises)
pipeline.set_progress_bar_config(disable=True)
drawn = pipeline(
    batch_size=4, num_inference_steps=5, generator=torch.Generator().manual_seed(1), output_type="np"
).images
np.save("drawn.npy", drawn)
print(drawn.shape, float(drawn.astype("float64").mean()))
ema.restore(model.parameters())
pipeline.save_pretrained("pipeline")
