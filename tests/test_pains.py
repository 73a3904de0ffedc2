"""What users of other tools suffer, each by its symptom: here it cannot happen."""

import copy
import io
import pickle
import random

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

from tests.support.training import (
    TWO_OR_THREE,
    Runs,
    Scripts,
    assert_as_alone,
    batches,
    mlp,
    rows,
    sgd,
    train,
    weights,
)

pytestmark = pytest.mark.slow

script = Scripts()


def score(model, loader):
    """Accuracy over a loader, as everybody computes it."""
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()
    model.train()
    return hits / len(loader.dataset)


@script
def p01_the_evaluation_score_changes_with_the_number_of_gpus():
    model, data = mlp(), rows(13)
    logits = torch.cat([model(x) for x, _ in DataLoader(data, 4)])
    return score(model, DataLoader(data, 4)), tuple(logits.shape), logits


@script
def p02_every_rank_splits_the_data_set_its_own_way():
    train_set, valid_set = random_split(rows(17), [11, 6])
    picked = random.sample(range(17), 5), np.random.permutation(17).tolist()
    model = mlp()
    losses = train(model, DataLoader(train_set, 4, shuffle=True))
    return (
        train_set.indices,
        valid_set.indices,
        picked,
        losses,
        score(model, DataLoader(valid_set, 4)),
    )


@script
def p03_the_order_is_the_same_in_every_epoch():
    loader = DataLoader(TensorDataset(torch.arange(11)), 4, shuffle=True)
    epochs = [[n for (x,) in loader for n in x.tolist()] for _ in range(3)]
    assert len(set(map(tuple, epochs))) == 3
    return epochs


@script
def p04_the_learning_rate_decays_too_fast():
    model, rates = mlp(), []
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, epochs=2, steps_per_epoch=len(batches(22, 4))
    )
    for _ in range(2):
        for x, y in batches(22, 4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr()[0])
    return rates, weights(model)


@script
def p05_many_gpus_do_not_reproduce_one():
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)
    )
    return train(model, batches(22, 8), 2), weights(model), torch.rand(())


@script
def p06_the_mean_over_masked_tokens_is_a_mean_of_means():
    lengths, model = [1, 9, 2, 7, 3, 5, 1], nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 11))
    x = pad_sequence([torch.randint(11, (n,)) for n in lengths], True)
    mask = pad_sequence([torch.ones(n) for n in lengths], True)
    optimizer, losses = sgd(model), []
    for tokens, valid in DataLoader(TensorDataset(x, mask), 3):
        optimizer.zero_grad()
        out = model(tokens)
        by_mask = (
            F.cross_entropy(out.transpose(1, 2), tokens, reduction="none").mul(valid).sum()
            / valid.sum()
        )
        target = tokens.masked_fill(valid == 0, -100)
        ignored = F.cross_entropy(out.flatten(0, 1), target.flatten())
        picked = F.cross_entropy(out[valid.bool()], tokens[valid.bool()])
        (by_mask + ignored + picked).backward()
        optimizer.step()
        losses.append([by_mask.item(), ignored.item(), picked.item()])
    return losses, weights(model)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(5, 6), nn.Linear(6, 3)

    def encode(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.encode(x))


@script
def p07_a_forward_by_another_method_skips_the_averaging():
    model = Encoder()
    optimizer = sgd(model)
    wrapped = nn.DataParallel(model)
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model.head(model.encode(x)), y) + F.cross_entropy(
            wrapped.module(x), y
        )
        (loss + model.forward(x).mean()).backward()
        optimizer.step()
    return weights(model)


@script
def p08_moving_the_model_away_and_back_ends_the_averaging():
    model, losses = mlp(), []
    for kind in (torch.float64, torch.float32, torch.float64):
        model.to("cpu").to(kind).to(torch.float64)
        losses += train(model, batches(12, 5))
    for p in model.parameters():
        p.data = p.data.clone()
    return losses, train(model, batches(12, 5)), weights(model)


@script
def p09_a_gradient_penalty_has_wrong_gradients():
    critic = mlp(5, 1)
    optimizer = torch.optim.Adam(critic.parameters(), 0.01)
    penalties = []
    for real, _ in batches(22, 8):
        fake = torch.randn(real.shape)
        share = torch.rand(real.size(0), 1)
        mixed = (share * real + (1 - share) * fake).requires_grad_()
        out = critic(mixed)
        (g,) = torch.autograd.grad(out, mixed, torch.ones_like(out), create_graph=True)
        penalty = ((g.norm(2, dim=1) - 1) ** 2).mean()
        optimizer.zero_grad()
        (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
        optimizer.step()
        penalties.append(penalty.item())
    return penalties, weights(critic)


@script
def p10_noise_is_the_same_on_every_rank():
    model, noises = mlp(), []
    for x, _ in batches(12, 6):
        noise = torch.randn_like(x)
        noises.append(noise)
        model(x + noise).mean().backward()
    whole = torch.cat([n.sum(1) for n in noises])
    assert len(whole.unique()) == 12
    return whole, [p.grad for p in model.parameters()]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(11.0))


@script
def p11_an_iterable_yields_its_rows_once_for_each_rank():
    seen = [x.sum().item() for x in DataLoader(Stream(), 4, num_workers=1)]
    return seen, sum(seen)


@script
def p12_early_stopping_is_decided_on_one_ranks_part():
    model, data = mlp(), rows(13)
    optimizer = sgd(model, 3.0)
    best, worse, epochs, kept = float("inf"), 0, 0, None
    while worse < 2 and epochs < 12:
        train(model, DataLoader(data, 5, shuffle=True), optimizer=optimizer)
        with torch.no_grad():
            value = sum(F.cross_entropy(model(x), y).item() for x, y in batches(9, 4))
        epochs, worse = epochs + 1, worse + 1
        if value < best:
            best, worse, kept = value, 0, copy.deepcopy(model.state_dict())
    return best, epochs, list(kept.values())


@script
def p13_hits_by_the_length_of_the_data_set_are_too_few():
    model = nn.Linear(5, 3)
    x = torch.randn(17, 5)
    loader = DataLoader(TensorDataset(x, model(x).argmax(1)), 5)
    accuracy = score(model, loader)
    assert accuracy == 1
    return accuracy


@script
def p14_uneven_batches_hang():
    model, sizes = mlp(), (1, 7, 2, 8, 3, 1)
    batched = DataLoader(rows(22), batch_sampler=[list(range(n)) for n in sizes])
    return train(model, batched), [len(x) for x, _ in batched], weights(model)


@script
def p15_validation_on_rank_0_alone_hangs(run):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    found = []
    for epoch in range(2):
        found += train(model, batches(12, 5))
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if rank == 0:
            found.append(score(model, batches(9, 4)))
            model.train()
            found.append(model(torch.randn(4, 5)).sum().item() + epoch)
    return found, weights(model)


@script
def p16_a_break_on_one_rank_only_hangs():
    model, steps = mlp(), []
    optimizer = sgd(model, 0.5)
    for _ in range(3):
        for x, y in batches(22, 4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if loss > 1.2 or (steps and loss.item() > 2 * steps[-1]):
                continue
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
            if loss < 0.95 or x.mean() > 0.4:
                break
    return steps, weights(model)


@script
def p18_lbfgs_calls_its_closure_a_different_number_of_times():
    model, calls = mlp(), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    x, y = next(iter(batches(9, 7)))

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        calls.append(1)
        return loss

    return [optimizer.step(closure).item() for _ in range(2)], len(calls)


@script
def p19_unused_parameters_and_an_extra_forward_are_an_error():
    model = nn.ModuleDict(
        {"used": mlp(), "never": nn.Linear(2, 2), "now_and_then": nn.Linear(3, 3)}
    )
    optimizer, losses = sgd(model), []
    for step, (x, y) in enumerate(batches(22, 4)):
        optimizer.zero_grad()
        model["used"](x)  # an extra forward
        out = model["used"](x)
        loss = F.cross_entropy(model["now_and_then"](out) if step % 2 else out, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights(model), model["never"].weight.grad is None


@script
def p20_a_discriminator_with_batchnorm_run_twice_is_an_error():
    maker = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    judge = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    of_maker, of_judge, losses = sgd(maker), sgd(judge), []
    for real, _ in batches(22, 8):
        fake = maker(torch.randn(real.size(0), 4))
        of_judge.zero_grad()
        yes, no = judge(real), judge(fake.detach())
        loss = F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes))
        loss = loss + F.binary_cross_entropy_with_logits(no, torch.zeros_like(no))
        loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        again = judge(fake)
        F.binary_cross_entropy_with_logits(again, torch.ones_like(again)).backward()
        of_maker.step()
        losses.append(loss.item())
    return losses, weights(maker, judge)


@script
def p21_reentrant_checkpoints_with_shared_weights_are_ready_twice():
    shared, head = nn.Sequential(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 3)
    optimizer = sgd(nn.ModuleList([shared, head]))
    for x, y in batches():
        optimizer.zero_grad()
        h = x.requires_grad_()
        for _ in range(3):
            h = torch.utils.checkpoint.checkpoint(shared, h, use_reentrant=True)
        F.cross_entropy(head(shared(h)), y).backward()
        optimizer.step()
    return weights(shared, head)


@script
def p22_the_model_cannot_be_copied_or_pickled_for_an_average():
    model = mlp()
    average = copy.deepcopy(model)
    swa = torch.optim.swa_utils.AveragedModel(model)
    optimizer = sgd(model)
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        swa.update_parameters(model)
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
    again = pickle.loads(pickle.dumps(model))
    held = io.BytesIO()
    torch.save(model, held)
    held.seek(0)
    loaded = torch.load(held, weights_only=False)
    assert type(again) is type(loaded) is nn.Sequential
    copies = copy.deepcopy(average), swa.module, again, loaded
    return weights(*copies), [score(m, batches(11, 4)) for m in copies], list(loaded.state_dict())


class Noisy(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, n):
        return torch.rand(())


@pytest.fixture(scope="module")
def seen():
    return Runs(lambda nproc: script.run(nproc))


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_not_here(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def test_p10_augmentation_is_the_same_on_every_rank():
    def augmented():
        return torch.cat(
            [x for workers in (0, 1) for x in DataLoader(Noisy(), 6, num_workers=workers)]
        )

    (zero, one) = Scripts(augmented=augmented).run(2)["augmented"]
    assert not zero.error, zero.error
    assert torch.equal(zero.value, one.value)  # the same batches, put together of rows of both
    assert len(zero.value.unique()) == 24
