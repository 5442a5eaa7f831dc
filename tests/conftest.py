"""What every test may ask for: the golden data, and the same examples from hypothesis on every run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def data() -> Path:
    """tests/data: the tiny trained pair and the golden files."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def tiny_pair(data: Path) -> Path:
    """The trained pair: draft/, target/ and expected/."""
    return data / "tiny-pair"
