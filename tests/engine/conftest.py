import pytest

from engine.tiny_engine import TinyModels


@pytest.fixture(scope="session")
def models():
    return TinyModels()
