"""What every test has: one event-loop back end."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
