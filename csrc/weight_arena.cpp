#include "weight_arena.h"

#include <algorithm>

namespace octavo {
namespace {

// Only what is touched is committed, so a chunk's unused end costs addresses and no memory.
constexpr size_t kChunkBytes = size_t{256} << 20;

}  // namespace

std::shared_ptr<std::byte> WeightArena::allocate(size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (chunk_ == nullptr || used_bytes_ + num_bytes > chunk_->num_bytes()) {
    chunk_ = std::make_shared<AlignedStorage>(std::max(num_bytes, kChunkBytes));
    used_bytes_ = 0;
  }
  std::byte* start = chunk_->data() + used_bytes_;
  used_bytes_ += (num_bytes + AlignedStorage::kAlignment - 1) / AlignedStorage::kAlignment * AlignedStorage::kAlignment;
  return {chunk_, start};
}

}  // namespace octavo
