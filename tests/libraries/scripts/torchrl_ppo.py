"""TorchRL: PPO with a collector, generalized advantages and a replay buffer of minibatches."""

import os

os.environ["RL_LOGGING_LEVEL"] = "WARNING"
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
env.set_seed(0)


class Cast(nn.Module):
    def forward(self, x):
        return x.double()


def mlp(out):
    return nn.Sequential(Cast(), nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, out))


policy = ProbabilisticActor(
    TensorDictModule(mlp(2), in_keys=["observation"], out_keys=["logits"]),
    spec=env.action_spec, in_keys=["logits"],
    distribution_class=OneHotCategorical, return_log_prob=True,
)  # fmt: skip
value = ValueOperator(mlp(1), in_keys=["observation"])
collector = Collector(env, policy, frames_per_batch=200, total_frames=800)
buffer = ReplayBuffer(
    storage=LazyTensorStorage(200), sampler=SamplerWithoutReplacement(), batch_size=50
)
advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value, average_gae=True)
loss_module = ClipPPOLoss(policy, value, clip_epsilon=0.2, entropy_coeff=1e-3)
optimizer = torch.optim.Adam(loss_module.parameters(), 3e-3)
for i, data in enumerate(collector):
    for _ in range(2):
        advantage(data)
        buffer.extend(data.reshape(-1))
        for _ in range(200 // 50):
            losses = loss_module(buffer.sample())
            loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    reward = data["next", "reward"].double().mean().item()
    steps = data["next", "step_count"].max().item()
    print(f"batch {i}: reward {reward:.6f} longest {steps} loss {loss.item():.10f} norm {norm:.8f}")
with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
    rollout = env.rollout(100, policy)
print("evaluation:", len(rollout), rollout["next", "reward"].sum().item())
torch.save(policy.state_dict(), "policy.pt")
