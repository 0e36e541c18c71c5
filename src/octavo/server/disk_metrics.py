"""The disk cache's part of ``/metrics``.

Owns: names and words. Must not know: Prometheus.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.tiers.disk_tier import TierStats


def disk_gauges(disk: "TierStats | None") -> list[tuple[str, str, float]]:
    """Returns name, text and value of each gauge; none when there is no disk cache."""
    if disk is None:
        return []
    return [
        ("disk_cache_on", "1 while the disk cache works, 0 once an error turned it off.", float(disk.is_on)),
        ("disk_cache_blocks", "KV blocks on disk.", disk.num_stored_blocks),
        ("disk_cache_queue", "KV blocks that wait to be written to disk.", disk.num_queued_writes),
    ]


def disk_counters(disk: "TierStats | None") -> list[tuple[str, str, float]]:
    """Returns name, text and value of each counter; none when there is no disk cache."""
    if disk is None:
        return []
    return [
        ("disk_cache_hits", "Tokens that were read from disk instead of being computed.", disk.num_read_tokens),
        ("disk_cache_read_bytes", "Bytes of KV blocks read from disk.", disk.num_read_bytes),
        ("disk_cache_written_bytes", "Bytes of KV blocks written to disk.", disk.num_written_bytes),
        ("disk_cache_dropped_blocks", "Evicted KV blocks not written because the queue was full.", disk.num_dropped_blocks),
        ("disk_cache_damaged_blocks", "KV blocks on disk that did not match their checksum.", disk.num_damaged_blocks),
        ("disk_cache_recomputed", "Prefixes on disk that were computed because that was cheaper.", disk.num_unwanted_reads),
    ]
