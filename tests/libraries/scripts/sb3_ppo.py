"""Stable-Baselines3: PPO and DQN on gymnasium's CartPole, with a log, an evaluation and saves."""

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double  # observations are converted by float()
env = make_vec_env("CartPole-v1", n_envs=4, seed=1)
held_out = make_vec_env("CartPole-v1", n_envs=1, seed=2)
model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=4, seed=0, device="cpu")
model.set_logger(configure("logs", ["csv"]))
callbacks = [
    EvalCallback(held_out, eval_freq=128, n_eval_episodes=3, log_path="evals", verbose=0,
                 best_model_save_path="best"),
    CheckpointCallback(save_freq=128, save_path="kept"),
]  # fmt: skip
model.learn(total_timesteps=1024, callback=callbacks)
mean, std = evaluate_policy(model, held_out, n_eval_episodes=3)
print(f"PPO reward {mean:.6f} +- {std:.6f}")
model.save("ppo_cartpole")
print([f"{p.double().sum().item():.10f}" for p in model.policy.parameters()])

model = DQN("MlpPolicy", "CartPole-v1", learning_starts=50, batch_size=32, seed=0, device="cpu",
            train_freq=4, target_update_interval=50, buffer_size=1000)  # fmt: skip
model.learn(total_timesteps=400)
print([f"{p.double().sum().item():.10f}" for p in model.policy.parameters()])
model.save("dqn_cartpole")
model = DQN.load("dqn_cartpole")
observation = model.get_env().reset() if model.get_env() else torch.zeros(1, 4).numpy()
print("action", model.predict(observation, deterministic=True)[0])
