"""Reinforcement learning without a loader: an actor-critic on a toy world, then Q-learning from a replay buffer."""
import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

torch.set_default_dtype(torch.float64)
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


def step(state, action):
    state = 0.9 * state + 0.1 * np.random.randn(4)
    state[action] += 0.3
    return state, -abs(float(state.sum()) - 1), np.random.rand() < 0.1


actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 5))
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
buffer = deque(maxlen=200)
for episode in range(4):
    state, done, kept = np.zeros(4), False, []
    while not done and len(kept) < 25:
        out = actor(torch.from_numpy(state).unsqueeze(0))
        policy = Categorical(logits=out[0, :4])
        action = policy.sample()
        after, reward, done = step(state, action.item())
        buffer.append((state, action.item(), reward, after, done))
        kept.append((policy.log_prob(action), out[0, 4], reward))
        state = after
    returns = torch.tensor(np.cumsum([k[2] for k in kept][::-1])[::-1].copy())
    advantage = returns - torch.stack([k[1] for k in kept])
    loss = -(torch.stack([k[0] for k in kept]) * advantage.detach()).mean() + advantage.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, len(kept), loss.item(), sum(k[2] for k in kept))
for _ in range(4):
    s, a, r, t, d = (torch.from_numpy(np.array(c)) for c in zip(*random.sample(buffer, min(16, len(buffer)))))
    with torch.no_grad():
        target = r + 0.9 * actor(t)[:, :4].max(1)[0] * (~d)
    loss = F.smooth_l1_loss(actor(s)[:, :4].gather(1, a[:, None]).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(actor.state_dict(), "actor.pt")
