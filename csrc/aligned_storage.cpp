#include "aligned_storage.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

AlignedStorage::AlignedStorage(size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  const bool huge = num_bytes >= kHugePage;
  const size_t alignment = huge ? kHugePage : kAlignment;
  data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, round_up(num_bytes, alignment)));
  if (data_ == nullptr) throw std::bad_alloc();
  if (huge) madvise(data_, round_up(num_bytes, alignment), MADV_HUGEPAGE);  // advice only: failure changes nothing
  std::memset(data_, 0, num_bytes);
}

AlignedStorage::~AlignedStorage() { std::free(data_); }

AlignedStorage::AlignedStorage(AlignedStorage&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

AlignedStorage& AlignedStorage::operator=(AlignedStorage&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

}  // namespace octavo
