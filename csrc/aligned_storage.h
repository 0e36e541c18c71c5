// Owned memory for weights and scratch, aligned for any vector register.
#pragma once

#include <cstddef>

namespace octavo {

class AlignedStorage {
 public:
  static constexpr size_t kAlignment = 64;

  AlignedStorage() = default;

  // Allocates num_bytes, zeroed; from 2 MiB on it asks the system for huge pages. Throws std::bad_alloc.
  explicit AlignedStorage(size_t num_bytes);
  ~AlignedStorage();
  AlignedStorage(AlignedStorage&& other) noexcept;
  AlignedStorage& operator=(AlignedStorage&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace octavo
