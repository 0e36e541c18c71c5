// Memory for packed weights, one after the other in the order of packing.
//
// Most weights of a small model are smaller than a huge page; side by side they get huge pages all the same, and a
// forward pass reads them as one stream.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "aligned_storage.h"

namespace octavo {

class WeightArena {
 public:
  // Returns zeroed bytes, aligned to 64; may be called from several threads. A chunk is given back when the last weight
  // in it is gone.
  std::shared_ptr<std::byte> allocate(size_t num_bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<AlignedStorage> chunk_;
  size_t used_bytes_ = 0;
};

}  // namespace octavo
