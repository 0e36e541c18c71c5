#include "aligned_storage.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Zeroed pages of the system, aligned to huge pages and committed when they are touched.
std::byte* map_pages(size_t num_bytes) {
  const size_t wanted = round_up(num_bytes, kHugePage);
  void* reserved = mmap(nullptr, wanted + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) throw std::bad_alloc();
  auto* start = static_cast<std::byte*>(reserved);
  const size_t before = round_up(reinterpret_cast<uintptr_t>(start), kHugePage) - reinterpret_cast<uintptr_t>(start);
  if (before > 0) munmap(start, before);
  if (before < kHugePage) munmap(start + before + wanted, kHugePage - before);
  madvise(start + before, wanted, MADV_HUGEPAGE);  // advice only: failure changes nothing
  return start + before;
}

}  // namespace

AlignedStorage::AlignedStorage(size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  if (num_bytes >= kHugePage) {
    data_ = map_pages(num_bytes);
    return;
  }
  const size_t size = round_up(num_bytes, kAlignment);
  data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_, 0, size);
}

AlignedStorage::~AlignedStorage() {
  if (num_bytes_ >= kHugePage) {
    munmap(data_, round_up(num_bytes_, kHugePage));
  } else {
    std::free(data_);
  }
}

AlignedStorage::AlignedStorage(AlignedStorage&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

AlignedStorage& AlignedStorage::operator=(AlignedStorage&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

}  // namespace octavo
