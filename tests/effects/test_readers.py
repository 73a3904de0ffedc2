"""Which argument names the file that a library reads past Python's `open`."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from autoddp.effects.readers import named_file, read
from autoddp.patching import Call


@pytest.fixture
def files(tmp_path):
    for name in ("mine", "elsewhere"):
        save_file({name: torch.ones(2)}, str(tmp_path / name))
    return str(tmp_path / "mine"), str(tmp_path / "elsewhere")


@pytest.mark.parametrize("by_name", [False, True])
def test_a_function_written_in_c_reads_where_the_file_is(files, by_name):
    """It does not tell the names of its arguments, of which the path may be one."""
    mine, elsewhere = files
    call = Call(safe_open, *(((), {"filename": mine}) if by_name else ((mine,), {})))
    call.kwargs["framework"] = "pt"
    assert named_file(call)
    with read(call, lambda path: elsewhere) as found:
        assert list(found.keys()) == ["elsewhere"]


@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_path_is_text_or_bytes(tmp_path, kind):
    torch.save(1, tmp_path / "mine")
    torch.save(2, tmp_path / "elsewhere")
    call = Call(torch.load, (kind(str(tmp_path / "mine")),), {})
    assert named_file(call)
    assert read(call, lambda path: str(tmp_path / "elsewhere")) == 2


def test_an_open_file_names_none(tmp_path):
    torch.save(1, tmp_path / "mine")
    with open(tmp_path / "mine", "rb") as file:
        assert not named_file(Call(torch.load, (file,), {}))
