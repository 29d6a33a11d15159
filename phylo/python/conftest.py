"""The program that the wheel is compared with: `pytest --program FILE`."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--program", default=None)


@pytest.fixture
def program(request):
    given = request.config.getoption("--program")
    return given or pytest.skip("no --program")
