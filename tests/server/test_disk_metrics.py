"""The disk cache in ``/metrics`` and in explanations."""

from pathlib import Path

from engine.tiny_engine import TinyModels
from octavo.cli.top import read_figures
from server.running import running_server

PROMPT = "A prompt of more than three blocks of sixteen tokens each"  # one token for each byte


def test_what_comes_from_disk_is_counted_and_explained(tmp_path: Path) -> None:
    models = TinyModels()
    with running_server(models.engine(disk_cache=str(tmp_path))) as server:
        server.complete(prompt=PROMPT, max_tokens=1)
        figures = read_figures(server.url, "none")
        assert (figures["disk_cache_on"], figures["disk_cache_blocks"], figures["disk_cache_hits_total"]) == (1, 0, 0)
    with running_server(models.engine(disk_cache=str(tmp_path))) as server:
        server.complete(prompt=PROMPT, max_tokens=1, request_id="warm")
        figures = read_figures(server.url, "none")
        assert figures["disk_cache_hits_total"] == 48
        assert figures["disk_cache_read_bytes_total"] > 0 and figures["disk_cache_blocks"] > 0
        explained = server.http.get("/octavo/requests/warm").json()
        assert explained["prefix"]["num_disk_tokens"] == explained["prefix"]["num_hit_tokens"] == 48


def test_a_server_without_a_disk_cache_shows_none() -> None:
    with running_server() as server:
        assert not [name for name in read_figures(server.url, "none") if "disk" in name]
