// rope_and_store: normalises and rotates the heads of q and k, keeps q, writes k and v to their slots.
//
// Workers take whole rows. fp32 KV only. Twin: rope_and_store in reference.py.
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/kv_element.h"

namespace octavo::OCTAVO_ISA {
namespace {

void normalise_head(float* head, int64_t head_dim, const float* weight, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < head_dim; ++i) sum += head[i] * head[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(head_dim) + eps);
  for (int64_t i = 0; i < head_dim; ++i) head[i] *= factor * weight[i];
}

void rotate_head(float* head, const float* rotation, int64_t half_dim) {
  for (int64_t i = 0; i < half_dim; ++i) {
    const float cosine = rotation[i], sine = rotation[half_dim + i];
    const float x = head[i], y = head[i + half_dim];
    head[i] = x * cosine - y * sine;
    head[i + half_dim] = y * cosine + x * sine;
  }
}

void store_token(const KVLayer& kv, int64_t slot, const float* k, const float* v) {
  std::byte* block = kv.storage + slot / kv.block_size * kv.block_stride;
  const int64_t offset = slot % kv.block_size;
  float* k_part = reinterpret_cast<float*>(block);
  float* v_part = reinterpret_cast<float*>(block + kv.part_bytes);
  for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
    for (int64_t i = 0; i < kv.head_dim; ++i) {
      k_part[k_element(kv, head, offset, i)] = k[head * kv.head_dim + i];
      v_part[v_element(kv, head, offset, i)] = v[head * kv.head_dim + i];
    }
  }
}

}  // namespace

void rope_and_store(const RopeAndStoreArgs& args, int64_t num_rows, Worker& worker) {
  const int64_t head_dim = args.kv.head_dim;
  const Range rows = share_of(num_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float* q = args.qkv + row * args.qkv_stride;
    float* k = q + args.num_q_heads * head_dim;
    const float* rotation = args.rotation + row * 2 * args.half_dim;
    for (int64_t head = 0; head < args.num_q_heads + args.kv.num_kv_heads; ++head) {
      const float* weight = head < args.num_q_heads ? args.q_norm : args.k_norm;
      if (weight != nullptr) normalise_head(q + head * head_dim, head_dim, weight, args.eps);
      rotate_head(q + head * head_dim, rotation, args.half_dim);
    }
    if (args.slot_mapping[row] >= 0) {
      store_token(args.kv, args.slot_mapping[row], k, k + args.kv.num_kv_heads * head_dim);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
