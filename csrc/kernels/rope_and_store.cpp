// rope_and_store: optional RMS norm of each head of q and k, rotation in halves, K and V into their slots. Twin:
// rope_and_store in reference.py.
//
// Workers take whole tokens. Two tokens may share a cache line of a block but never a byte of it. Positions inside a
// block are int64.
#include "kernels/kv_elements.h"
#include "kernels/magnitude.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kMaxHeadDim = 256;
constexpr float kMaxFp16 = 65504.0f;

void normalise_head(float* head, const float* weight, int64_t head_dim, float eps) {
  VF sum = zero();
  for (int64_t d = 0; d < head_dim; d += VF::kLanes) {
    const VF x = load(head + d);
    sum = fma(x, x, sum);
  }
  const float mean = reduce_add(sum) / static_cast<float>(head_dim);
  const VF factor = broadcast(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t d = 0; d < head_dim; d += VF::kLanes) store(head + d, load(head + d) * factor * load(weight + d));
}

// Rotates elements i and i + half_dim by angle i.
void rotate_head(float* head, const float* rotation, int64_t half_dim) {
  for (int64_t i = 0; i < half_dim; i += VF::kLanes) {
    const int n = half_dim - i < VF::kLanes ? static_cast<int>(half_dim - i) : VF::kLanes;
    const VF cosine = load_partial(rotation + i, n);
    const VF sine = load_partial(rotation + half_dim + i, n);
    const VF low = load_partial(head + i, n);
    const VF high = load_partial(head + half_dim + i, n);
    store_partial(head + i, fma(zero() - high, sine, low * cosine), n);
    store_partial(head + half_dim + i, fma(low, sine, high * cosine), n);
  }
}

// A token's place in a granule: element i of K is at k_at(i), of V at v_at(i), counted in elements.
struct Place {
  int64_t token;  // in the granule
  int64_t head_dim;
  bool paired;  // bf16

  int64_t k_at(int64_t i) const {
    if (paired) return (i / 2 * kGranuleTokens + token) * 2 + i % 2;
    return i * kGranuleTokens + token;
  }
  int64_t v_at(int64_t i) const {
    if (paired) return (token / 2 * head_dim + i) * 2 + token % 2;
    return token * head_dim + i;
  }
};

template <class Element>
void scatter(const Element* k, const Element* v, const Granule& granule, const Place& place) {
  auto* k_storage = reinterpret_cast<Element*>(granule.k);
  auto* v_storage = reinterpret_cast<Element*>(granule.v);
  for (int64_t i = 0; i < place.head_dim; ++i) {
    k_storage[place.k_at(i)] = k[i];
    v_storage[place.v_at(i)] = v[i];
  }
}

void round_to_16_bits(const float* from, uint16_t* to, int64_t size, KVDtype dtype) {
  const VF limit = broadcast(kMaxFp16);
  for (int64_t d = 0; d < size; d += VF::kLanes) {
    if (dtype == KVDtype::kBf16) {
      store_bf16(to + d, load(from + d));
    } else {
      store_fp16(to + d, max(zero() - limit, min(limit, load(from + d))));
    }
  }
}

// Writes round(x / scale) and returns the scale, max |x| / 127. With a NaN or an infinity among them the scale is one,
// and what is read back is NaN.
float quantise(const float* from, int8_t* to, int64_t size) {
  const float scale = largest_magnitude(from, size) / 127.0f;
  for (int64_t d = 0; d < size; ++d) {
    const float ratio = scale > 0.0f ? __builtin_rintf(from[d] / scale) : 0.0f;
    const float bounded = ratio > 127.0f ? 127.0f : ratio < -127.0f ? -127.0f : ratio;  // a subnormal scale is coarse
    to[d] = static_cast<int8_t>(bounded == bounded ? bounded : 0.0f);                   // infinity / infinity
  }
  return scale;
}

void store_head(const KVLayer& kv, const Granule& granule, int64_t token, const float* k, const float* v) {
  const Place place = {token, kv.head_dim, kv.dtype == KVDtype::kBf16};
  if (kv.dtype == KVDtype::kFp32) {
    scatter(k, v, granule, place);
  } else if (kv.dtype == KVDtype::kInt8) {
    int8_t k_bytes[kMaxHeadDim];
    int8_t v_bytes[kMaxHeadDim];
    granule.k_scales[token] = quantise(k, k_bytes, kv.head_dim);
    granule.v_scales[token] = quantise(v, v_bytes, kv.head_dim);
    scatter(k_bytes, v_bytes, granule, place);
  } else {
    uint16_t k_bits[kMaxHeadDim];
    uint16_t v_bits[kMaxHeadDim];
    round_to_16_bits(k, k_bits, kv.head_dim, kv.dtype);
    round_to_16_bits(v, v_bits, kv.head_dim, kv.dtype);
    scatter(k_bits, v_bits, granule, place);
  }
}

}  // namespace

void rope_and_store(const RopeAndStoreArgs& args, int64_t num_rows, Worker& worker) {
  const KVLayer& kv = args.kv;
  const Range rows = share_of(num_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float* q = args.qkv + row * args.qkv_stride;
    float* k = q + args.num_q_heads * kv.head_dim;
    const float* v = k + kv.num_kv_heads * kv.head_dim;
    const float* rotation = args.rotation + row * 2 * args.half_dim;
    for (int64_t head = 0; head < args.num_q_heads + kv.num_kv_heads; ++head) {
      const float* norm = head < args.num_q_heads ? args.q_norm : args.k_norm;
      if (norm != nullptr) normalise_head(q + head * kv.head_dim, norm, kv.head_dim, args.eps);
      rotate_head(q + head * kv.head_dim, rotation, args.half_dim);
    }
    const int64_t slot = args.slot_mapping[row];
    if (slot < 0) continue;
    const int64_t offset = slot % kv.block_size;
    for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
      const Granule granule = granule_at(kv, slot / kv.block_size, head, offset / kGranuleTokens);
      store_head(kv, granule, offset % kGranuleTokens, k + head * kv.head_dim, v + head * kv.head_dim);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
