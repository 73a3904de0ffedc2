"""The runs of a file's scripts, which several of its tests look at."""

import pytest

from tests.support.training import Runs


@pytest.fixture(scope="module")
def seen(request):
    """What each of the file's `script`s did on so many ranks."""
    return Runs(lambda nproc: request.module.script.run(nproc))
