// Walks a stretch of a sequence's context tile by tile, all KV heads of a tile one after the other; meanwhile what is
// read next is fetched, half a head of a tile ahead.
#pragma once

#include "kernels/attention_plan.h"
#include "kernels/attention_tile.h"

namespace octavo::OCTAVO_ISA {

// From this many rows of a KV head on, expanding K and V to floats once costs less than converting them for every block
// of rows.
constexpr int64_t kExpandRows = 13;

// The part of a context that is read together: its granules in [begin, end) of some heads. Empty with end 0.
struct Stretch {
  const int32_t* block_table;
  int64_t first_head;
  int64_t num_heads;
  int64_t begin;
  int64_t end;

  int64_t first_tile() const { return begin / kTileTokens * kTileTokens; }
};

// The part of a segment that the item's queries see; empty past the last.
static inline Stretch stretch_of(const PagedAttentionArgs& args, const Item& item, int64_t segment) {
  if (segment >= item.last_segment) return {};
  const int64_t begin = max_of(segment * kSegmentTokens, first_visible(args, item.first_position));
  const int64_t end = min_of((segment + 1) * kSegmentTokens, item.first_position + item.num_queries);
  return {item.block_table, item.first_head, item.num_heads, begin, end};
}

// Finds where the tile at `start` and the stretch meet, for the stretch's first head.
static inline Tile tile_at(const KVLayer& kv, const Stretch& stretch, int64_t start) {
  Tile tile = {};
  tile.start = start;
  for (int i = 0; i < kTileGranules; ++i) {
    const int64_t position = start + i * kGranuleTokens;
    if (position + kGranuleTokens <= stretch.begin || position >= stretch.end) continue;
    const int64_t block_id = stretch.block_table[position / kv.block_size];
    tile.granules[i] = granule_at(kv, block_id, stretch.first_head, position % kv.block_size / kGranuleTokens);
  }
  return tile;
}

static inline Tile tile_of_head(const KVLayer& kv, const Tile& first, int64_t head) {
  Tile tile = first;
  for (Granule& granule : tile.granules) {
    if (granule.k == nullptr) continue;
    granule.k += head * kv.block_size * kv.head_dim * element_bytes(kv.dtype);
    granule.v += head * kv.block_size * kv.head_dim * element_bytes(kv.dtype);
    if (granule.k_scales == nullptr) continue;
    granule.k_scales += head * kv.block_size;
    granule.v_scales += head * kv.block_size;
  }
  return tile;
}

// Chooses what is fetched while a head of a tile is read: its own values beside the scores, the keys of the head that
// follows beside the weighted sum, or `harmless`, which is in the cache already. The scales are few: they are fetched
// at once.
static inline void look_ahead(Tile& tile, const Tile& following, const std::byte* harmless) {
  for (int i = 0; i < kTileGranules; ++i) {
    const Granule& next = following.granules[i];
    tile.ahead[i] = tile.granules[i].v != nullptr ? tile.granules[i].v : harmless;
    tile.ahead[kTileGranules + i] = next.k != nullptr ? next.k : harmless;
    if (next.k_scales == nullptr) continue;
    fetch(next.k_scales);
    fetch(next.v_scales);
  }
}

template <class Elements>
static void attend_expanded(const Rows& rows, RowRange range, Tile& tile, float* expanded) {
  const int64_t granule_floats = kGranuleTokens * rows.head_dim;
  for (int i = 0; i < kTileGranules; ++i) {
    if (tile.granules[i].k == nullptr) continue;
    float* k = expanded + 2 * i * granule_floats;
    expand_granule<Elements>(tile, i, rows.head_dim, k, k + granule_floats);
  }
  attend_tile<ExpandedElements>(rows, range, tile);
}

// Adds the stretch to the rows' soft-max; each head has num_rows / num_heads of them. `after` will be read next;
// `expanded` has room for [kTileGranules, 2, 16 * head_dim].
template <class Elements>
static void attend_stretch(const KVLayer& kv, const Stretch& stretch, const Stretch& after, const Rows& rows,
                           float* expanded) {
  const int64_t head_rows = rows.num_rows / stretch.num_heads;
  Tile first = tile_at(kv, stretch, stretch.first_tile());
  for (int64_t start = stretch.first_tile(); start < stretch.end; start += kTileTokens) {
    const bool is_last = start + kTileTokens >= stretch.end;
    const Stretch& next_stretch = is_last ? after : stretch;
    const Tile next = tile_at(kv, next_stretch, is_last ? after.first_tile() : start + kTileTokens);
    const std::byte* harmless = reinterpret_cast<const std::byte*>(rows.queries);
    Tile tile = first;
    for (int64_t head = 0; head < stretch.num_heads; ++head) {
      const Tile following = head + 1 < stretch.num_heads ? tile_of_head(kv, first, head + 1) : next;
      look_ahead(tile, following, harmless);
      const RowRange range = {head * head_rows, (head + 1) * head_rows};
      if (head_rows >= kExpandRows) {
        attend_expanded<Elements>(rows, range, tile, expanded);
      } else {
        attend_tile<Elements>(rows, range, tile);
      }
      tile = following;
    }
    first = next;
  }
}

static inline void attend_stretch(const KVLayer& kv, const Stretch& stretch, const Stretch& after, const Rows& rows,
                                  float* expanded) {
  switch (kv.dtype) {
    case KVDtype::kFp32:
      return attend_stretch<Fp32Elements>(kv, stretch, after, rows, expanded);
    case KVDtype::kFp16:
      return attend_stretch<Fp16Elements>(kv, stretch, after, rows, expanded);
    case KVDtype::kBf16:
      return attend_stretch<Bf16Elements>(kv, stretch, after, rows, expanded);
    case KVDtype::kInt8:
      return attend_stretch<Int8Elements>(kv, stretch, after, rows, expanded);
  }
}

}  // namespace octavo::OCTAVO_ISA
