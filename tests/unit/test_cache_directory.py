"""Where the cache is, and that its files appear whole."""

from pathlib import Path

import pytest

from octavo.models.cache_directory import cache_directory, write_atomically


def test_the_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/reader")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    assert cache_directory() == Path("/home/reader/.cache/octavo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/octavo")
    monkeypatch.setenv("OCTAVO_CACHE", "~/mine")
    assert cache_directory() == Path("/home/reader/mine")


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def fail(file):
        file.write(b"new")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
