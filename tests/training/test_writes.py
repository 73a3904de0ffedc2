"""Functions that may write into what outlives their call are told from those that cannot."""

from __future__ import annotations

import importlib.util
import sys
import textwrap

import pytest

from autoddp.training.sharing.reached import Reached
from autoddp.training.sharing.writes import may_write

WRITES = {
    "an attribute": "self.count += 1",
    "an element": "self.cache[i] = self.x[i]",
    "a list": "self.broken.append(i)",
    "in a branch": "if i == 7:\n    self.broken.append(i)",
    "by another name": "cache = self.cache\ncache[i] = 1",
    "by a name of a name": "a = self\nb = a.cache\nb.update(i=1)",
    "what it holds": "for row in self.rows:\n    row.append(1)",
    "what it hands out": "self.cache.get(i, []).append(i)",
    "in place": "x = self.x[i]\nx.mul_(2)",
    "by an operator": "x = self.x[i]\nx *= 2",
    "by an operator, what may be a copy": "x = self.x[i]\nif i:\n    x = x.clone()\nx *= 2",
    "by an operator, in turn": "x = []\nfor k in range(2):\n    x += [1]\n    x = self.rows[k]",
    "what shows its memory": "x = torch.from_numpy(self.x[i]).view(-1)\nx.add_(1)",
    "what may show its memory": "x = np.asarray(self.x[i])\nx[0] = 1",
    "by an operator, in a loop": "for row in self.rows:\n    row += [1]",
    "by an operator, one of two": "y = self.y[i]\nif i:\n    y = self.x[i]\ny -= 1",
    "a slice of a list": "ys = self.y[:3]\nys = self.rows[0]\nys += [1]",
    "an element of a tensor": "x = self.x[i]\nx[0] = 2",
    "a global": "global seen\nseen = i",
    "a global list": "LIST.append(i)",
    "a class": "type(self)\nHelper.count = i",
    "a class's list": "Helper.items.append(i)",
    "deleted": "del self.cache[i]",
    "by setattr": "setattr(self, 'x', i)",
    "an iterator": "next(self.rows)",
    "shuffled": "random.shuffle(self.rows)",
    "a heap": "heapq.heappush(self.rows, i)",
    "in a method": "self.note(i)",
    "in a property": "self.noting",
    "in a transform": "self.transform.apply(i)",
    "in an inner function": "def inner():\n    self.cache[i] = 1\ninner()",
    "in a lambda": "f = lambda: self.broken.append(i)\nf()",
    "in a comprehension": "[row.append(1) for row in self.rows]",
    "in a global's function": "note(i)",
    "a list of another module": "decimal.kept.append(i)",
    "a function's list": "note.kept.append(i)",
    "a function that is given it": "noted(self.broken, i)",
    "a function that hands it on": "passed(self.broken, i)",
    "a method that was taken": "add = self.broken.append\nadd(i)",
    "one of two": "a, b = self.broken, self.cache\na.append(i)",
    "one or the other": "(self.broken or LIST).append(i)",
    "one if": "(self.broken if i else [0]).append(i)",
    "by getattr": "getattr(self, 'broken').append(i)",
    "out=": "np.add(1, 1, out=self.x[i])",
    "first argument": "np.add.at(self.rows, i, 1)",
    "in a method of a class that names itself otherwise": "Other().run(i)",
    "a print": "print(i)",
    "a warning": "warnings.warn('bad')",
    "a log": "self.log.warning('bad')",
    "a file": "open('a', 'w')",
    "a file by its path": "Path('a').open(mode='a')",
    "a file in some mode": "open('a', self.mode)",
    "a folder": "Path('a').mkdir()",
}
NONE = {
    "a sample": "return self.x[i], self.y[i]",
    "what it makes": "x = {}\nx['a'] = self.x[i]\nreturn x",
    "what a call makes": "x = torch.zeros(3)\nx[i % 3] = 1\nx.mul_(2)\nreturn x",
    "a list of its own": "found = []\nfound.append(self.x[i])\nreturn found",
    "what it is given": "return self.marked({'x': self.x[i]})",
    "a text": "name = self.names[i]\nname += '.png'\nname += f'{i}'\nreturn name",
    "what it has made first": "x = self.x[i]\nx = x.clone()\nx /= 2\nreturn x",
    "a number": "y = self.y[i]\ny -= 1\nreturn y",
    "a number of an array": "y = self.array[i]\ny -= 1\nreturn y",
    "a number of a tuple": "x, y = self.pairs[i]\ny -= 1\nreturn x, y",
    "a number made of one": "y = int(self.y[i])\ny -= 1\nreturn y",
    "a tensor of another type": "x = self.x[i].float()\nx /= 255\nreturn x",
    "an array of another type": "x = np.asarray(self.x[i], dtype=np.float32)\nx /= 255\nreturn x",
    "parts of a text": "parts = self.names[i].split('/')\nparts.append('a')\nreturn parts",
    "the first of some": "return next(iter(self.cache.values()), 0)",
    "a number of its own": "n = len(self.x)\nn -= 1\nreturn self.x[n]",
    "functions of modules": "return np.append(self.x[i], 1), torch.add(self.x[i], 1), np.sort([2])",
    "words": "return NAME.partition('-')[0], self.x[i]",
    "a file to read": "with open('a') as f, Path('b').open('rb') as g:\n    return f, g",
    "a transform of its own": "return self.resize(self.x[i]), self.mean_, np.log(2.0)",
    "what it made, given": "found = []\nnoted(found, i)\nreturn found",
    "a copy": "row = list(self.rows[i])\nrow.sort()\nreturn row",
}


SOURCE = """
import decimal, heapq, random, warnings
from pathlib import Path
import numpy as np
import torch

LIST = []
NAME = "a-b"

decimal.kept = []

def note(i):
    LIST.append(i)

note.kept = []

def noted(items, i):
    items.append(i)

def passed(items, i):
    noted(items, i)

class Other:
    items = []

    def run(this, i):
        this.items.append(i)

class Helper:
    count, items = 0, []

class Transform:
    def __init__(self):
        self.seen = []

    def apply(self, i):
        self.seen.append(i)

class Files:
    def __init__(self):
        self.x, self.y, self.rows = torch.zeros(9, 2), [1] * 9, [[] for _ in range(9)]
        self.count, self.cache, self.broken, self.transform = 0, {}, [], Transform()
        self.rows.append([])
        self.array, self.pairs = np.arange(9), [("a", k) for k in range(9)]
        self.names = ["a/b"] * 9

    def note(self, i):
        self.broken.append(i)

    def resize(self, x):
        return x

    def unused(self):
        self.count = 7

    @property
    def noting(self):
        self.count += 1

    def marked(self, sample):
        sample["marked"] = True
        return sample

    def __getitem__(self, i):
    BODY
"""


@pytest.fixture
def found(tmp_path, monkeypatch):
    """What is found in a module whose data set fetches by these lines."""

    def find(body, types=()):
        path = tmp_path / "files_of_a_test.py"
        path.write_text(SOURCE.replace("    BODY", textwrap.indent(body, " " * 8)))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.syspath_prepend(tmp_path)  # as a user's own file
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        data = module.Files()
        return may_write(Reached(data).called(), data, types=types)

    return find


@pytest.mark.parametrize("what", WRITES)
def test_what_outlives_the_call_is_told(what, found):
    assert found(WRITES[what])


@pytest.mark.parametrize("what", NONE)
def test_what_a_function_makes_itself_is_not(what, found):
    assert found(NONE[what]) == ""


CONVERSIONS = {
    "x = self.x[i].float()\nx *= 2": "float32",
    "x = self.x[i].to(torch.float)\nx[0] = 2": "float32",
    "x = self.x[i].to(dtype=torch.double)\nx.mul_(2)": "float64",
    "x = torch.as_tensor(self.x[i], dtype=torch.int64)\nx -= 1": "int64",
    "x = np.asarray(self.array, np.uint8)\nx[i] = 2": "uint8",
    "x = self.array.astype('f', copy=False)\nx /= 255": "float32",
    "x = self.x[i].to(self.x.device)\nx += 1": "float32",
}


@pytest.mark.parametrize("body", CONVERSIONS)
def test_a_conversion_shows_data_that_has_its_type(body, found):
    assert found(body) == ""
    assert found(body, {"int8", CONVERSIONS[body]})
    if "copy" not in body and "device" not in body:
        assert found(body, {"int8"}) == ""
