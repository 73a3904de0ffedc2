"""Whatever a user or a launcher hands over is understood, or refused in one line that names it."""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict, fields
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoddp import cli, launch
from autoddp.decorator import NAMES, choose, count
from autoddp.options import ROWS, Options
from autoddp.process import features
from autoddp.process.own_ddp import Kind, LaunchForm
from autoddp.process.script import Script
from autoddp.process.source import FLAGS
from autoddp.report import PREFIX, Report
from autoddp.tools.verify import command as verification
from autoddp.training.loading.sampling import RowSampler
from tests.support.fuzz import NUMBERS, NUMERALS, WORDS, examples, number, refusal

# ---- the command line

STRAY = [
    *(
        "run",
        "verify",
        "patches",
        "env",
        "--nproc",
        "-n",
        "-nq",
        "--view",
        "--help=",
        "--",
        "-",
        "-m",
    ),
    *(
        "--disable",
        "--steps",
        "--json",
        "--no-strict",
        "--strict=1",
        "--nproc=",
        "=",
        "--=",
        "-vqm-",
    ),
]

COUNTS = {
    "run": ("nproc", "nnodes", "node_rank", "master_port", "grace", "max_restarts", "hang_timeout"),
    "verify": ("nproc", "steps", "hang_timeout"),
}
TEXTS = {"run": ("master_addr", "report", "log_dir"), "verify": ("json",)}
CHOICES = {name: row.words for name, row in ROWS.items() if row.words}
CHOSEN = {"run": tuple(CHOICES), "verify": ("backend", "batchnorm", "loading", "draws", "own_ddp")}
SWITCHES = {
    "run": {"-m": "module", "--strict": "strict", "-v": "verbose", "--quiet": "quiet"},
    "verify": {"-m": "module", "--float64": "float64", "-q": "quiet"},
}
DEFAULTS = {
    "run": asdict(Options()),
    "verify": asdict(Options(nproc=2)) | {"steps": None, "float64": False, "json": None},
}


@st.composite
def command_lines(draw):
    """A command, its arguments, what they ask for, and the names and values that may be refused."""
    command = draw(st.sampled_from(["run", "verify"]))
    line, wants, suspects = [], dict(DEFAULTS[command]), set()
    disabled: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["count", "text", "choice", "switch", "disable"]))
        if kind == "switch":
            name = draw(st.sampled_from(sorted(SWITCHES[command])))
            line.append(name)
            wants[SWITCHES[command][name]] = True
            continue
        if kind == "disable":
            name, value = (
                "disable",
                draw(st.sampled_from(["loaders,files", ",", "modules:Net.*"]) | WORDS),
            )
            disabled += [word for word in value.split(",") if word]
        elif kind == "choice":
            name = draw(st.sampled_from(CHOSEN[command]))
            value = wants[name] = draw(st.sampled_from(CHOICES[name]) | WORDS)
        elif kind == "text":
            name = draw(st.sampled_from(TEXTS[command]))
            value = wants[name] = draw(WORDS | st.sampled_from(["--strict", "-m", "--"]))
        else:
            name = draw(st.sampled_from(COUNTS[command]))
            value = draw(NUMERALS | st.sampled_from(["--strict", "-m", "--"]))
            wants[name] = number(value)
        flag = (
            draw(st.sampled_from(["-n", "--nproc"]))
            if name == "nproc"
            else f"--{name.replace('_', '-')}"
        )
        suspects |= {flag, f"--{name.replace('_', '-')}"}
        line += [f"{flag}={value}"] if flag != "-n" and draw(st.booleans()) else [flag, value]
        if kind == "count" and wants[name] is None:
            wants[name] = "none"  # a later one does not mend it, unless it is of the same name
    return command, line, wants | {"disable": tuple(disabled)}, suspects


def is_right(wants):
    """The rule, told once more: what can be asked for at all."""
    between = {
        "nproc": (1, 4096), "nnodes": (1, 2**20), "master_port": (1, 65535), "steps": (1, 10**400),
        "grace": (0, 10**9), "max_restarts": (0, 10**9), "hang_timeout": (0, 10**9),
    }  # fmt: skip
    for name, (least, most) in between.items():
        value = wants.get(name)
        if value is not None and (value == "none" or not least <= value <= most):
            return False
    if wants["node_rank"] == "none":
        return False
    if wants["node_rank"] is None:  # every node has to say which it is
        if wants["nnodes"] > 1:
            return False
    elif not 0 <= wants["node_rank"] < wants["nnodes"]:
        return False
    folder = os.path.dirname(wants.get("json") or "")
    if folder and not os.path.isdir(folder):
        return False
    return all(wants[name] in CHOICES[name] for name in CHOICES)


@examples(50)
@given(
    command_lines(),
    (st.sampled_from(["s.py", "pkg.mod", "naïve ☃.py", "a\nb", ""]) | WORDS).filter(
        lambda word: word != "-"  # which is read at once
    ),
    st.lists(WORDS | st.sampled_from(["--nproc", "-n", "--help", "--", "-m", "--view=odd", "-vq"])),
)
def test_a_command_line_is_what_it_says_or_refused(asked, script, rest):
    command, line, wants, suspects = asked
    apart = ["--"] if script.startswith("-") and len(script) > 1 else []
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run", lambda *given: told.append(given) or 0)
        patch.setattr(verification, "run", lambda *given: told.append(given) or 0)
        act, said = refusal(lambda: cli.parse([command, *line, *apart, script, *rest]))
        if said is not None:
            assert not is_right(wants), said
            assert any(name in said for name in suspects), said
            return
        assert act() == 0
    assert is_right(wants)
    what, options, *more = told[0]
    assert what == Script(script, tuple(rest), wants["module"])
    got = asdict(options) | {field: value for one in more for field, value in vars(one).items()}
    assert got == wants


@examples(80)
@given(
    st.lists(
        st.sampled_from(STRAY) | NUMERALS,
        max_size=6,
    )
)
@example([])
@example(["run", "--nproc"])
@example(["run", "--x\ny\r\u2028", "s"])
@example(["foo\nbar"])
@example(["patches", "a\nb"])
@example(["env", "\n"])
def test_any_words_are_an_act_or_refused(arguments):
    act, said = refusal(lambda: cli.parse(arguments))
    assert said is not None or act == 0 or callable(act)


# ---- options on their way


def options_of(values):
    return st.fixed_dictionaries(
        {}, optional=dict.fromkeys((f.name for f in fields(Options)), values)
    )


SCALAR = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.floats()
    | WORDS
    | st.sampled_from(["auto", "local", "whole"])
)
LISTED = st.lists(SCALAR, max_size=3)
ANYTHING = st.one_of(SCALAR, LISTED, st.dictionaries(WORDS, SCALAR | LISTED, max_size=3))
RIGHT = st.builds(
    lambda rank, more, **given: Options(node_rank=rank, nnodes=rank + more, **given),
    st.integers(0, 99),
    st.integers(1, 99),
    nproc=st.none() | st.integers(1, 4096),
    master_port=st.none() | st.integers(1, 65535),
    master_addr=st.none() | WORDS,
    report=st.none() | WORDS,
    disable=st.lists(WORDS).map(tuple),
    strict=st.booleans(),
    grace=st.integers(0, 10**9),
    record=WORDS,
    **{name: st.sampled_from(words) for name, words in CHOICES.items()},
)


@examples(60)
@given(RIGHT)
def test_options_arrive_as_they_were_sent(options):
    shared = {name: getattr(options, name) for name in NAMES}
    assert {name: getattr(choose(shared), name) for name in NAMES} == shared


@examples(80)
@given(options_of(ANYTHING), NUMERALS)
def test_the_decorators_options_are_understood_or_refused(given, override):
    _, said = refusal(lambda: choose(given))
    assert said is None or any(name in said.replace("-", "_") for name in given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTODDP_NPROC", override)
        ranks, said = refusal(lambda: count(choose({})))
    assert 1 <= ranks <= 4096 if said is None else "--nproc" in said


# ---- what is kept and told


@examples(60)
@given(st.lists(st.tuples(*[st.sampled_from(["gather", "whole", ""]) | WORDS] * 3), max_size=12))
def test_decisions_are_counted_and_told_once(decisions):
    stream = io.StringIO()
    report = Report(speaks=True, stream=stream)
    for decision in decisions:
        report.say_once(*decision)
    told = json.loads(report.to_json())["decisions"]
    kept = {(d["kind"], d["where"], d["what"]): d["count"] for d in told}
    assert kept == {decision: decisions.count(decision) for decision in decisions}
    assert list(kept) == list(dict.fromkeys(decisions))
    for kind in {kind for kind, _, _ in decisions}:
        counts = [decision.count for decision in report.of(kind)]
        assert counts == sorted(counts, reverse=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(kept)
    assert all(line.startswith(PREFIX) for line in lines)
    if decisions:
        _, said = refusal(lambda: Report(strict=True).doubt(*decisions[0]))
        assert said is not None
        assert said.startswith("--strict: ")


@examples(60)
@given(st.lists(st.integers(0, 200), max_size=6), st.integers(1, 64))
def test_ranks_fetch_each_row_once_in_order(lengths, ranks):
    batches = [list(range(100 * at, 100 * at + length)) for at, length in enumerate(lengths)]
    samplers = [RowSampler(batches, ranks, rank) for rank in range(ranks)]
    for batch, parts in zip(batches, zip(*samplers, strict=True), strict=True):
        if len(batch) < ranks:
            assert all(part == batch for part in parts)
            continue
        assert [index for part in parts for index in part] == batch
        sizes = [len(part) for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1
    for sampler in samplers:
        assert [None if s is None else sum(s) for s in sampler.sizes] == [
            n if n >= ranks else None for n in lengths
        ]


@examples(60)
@given(
    st.lists(WORDS | st.sampled_from(["--local_rank", "--local-rank=3", "--local_rankx=1", "-1"])),
    st.sampled_from(["", *FLAGS]),
    st.integers(0, 63),
)
def test_a_local_rank_is_given_where_it_is_wanted_and_once(given, flag, local_rank):
    got = LaunchForm(Kind.RANKS, flag=flag).arguments(tuple(given), local_rank)
    own = [
        word for word in given if word in FLAGS or word.startswith(tuple(f"{f}=" for f in FLAGS))
    ]
    added = [f"{flag}={local_rank}"] if flag and not own else []
    assert list(got) == added + given


@examples(100)
@given(st.lists(WORDS | st.sampled_from(["[", "**", "?", "\\", "files", "modules", "modules:a"])))
def test_any_name_of_a_feature_can_be_asked_for(names):
    known = {feature.name for feature in features.FEATURES}
    _, said = refusal(lambda: launch.check_disabled(SimpleNamespace(disable=tuple(names))))
    assert said is None if known.issuperset(names) else said.startswith("--disable is ")
