// What this machine can do at best in this instruction set: reading memory, and multiplying in each number format.
//
// Every worker does the whole of its work on its own; the caller divides the work by the time.
#include "kernels/kernels.h"
#include "simd/simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kChains =
    12;  // independent sums: enough to hide the latency of two multipliers, few enough for the registers

struct Fp32 {
  static constexpr int64_t kOperations = 2 * VF::kLanes;  // per instruction: a product and a sum each
  VF sum = zero(), factor = zero();
  void start(float one, int chain) {
    sum = broadcast(static_cast<float>(chain));
    factor = broadcast(one);
  }
  void multiply() { sum = fma(factor, factor, sum); }
  float result() const { return reduce_add(sum); }
};

#if defined(__AVX512BF16__)
struct Bf16 {
  static constexpr int64_t kOperations = 64;
  __m512 sum;
  __m512bh factor;
  void start(float one, int chain) {
    sum = _mm512_set1_ps(static_cast<float>(chain));
    factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(one), _mm512_set1_ps(one));
  }
  void multiply() { sum = _mm512_dpbf16_ps(sum, factor, factor); }
  float result() const { return _mm512_reduce_add_ps(sum); }
};
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct Bf16 {
  static constexpr int64_t kOperations = 32;
  float32x4_t sum;
  bfloat16x8_t factor;
  void start(float one, int chain) {
    sum = vdupq_n_f32(static_cast<float>(chain));
    factor = vdupq_n_bf16(vcvth_bf16_f32(one));
  }
  void multiply() { sum = vbfmmlaq_f32(sum, factor, factor); }
  float result() const { return vaddvq_f32(sum); }
};
#else
#define OCTAVO_WITHOUT_BF16
#endif

#if defined(__AVX512VNNI__)
struct Int8 {
  static constexpr int64_t kOperations = 128;
  __m512i sum, factor;
  void start(float one, int chain) {
    sum = _mm512_set1_epi32(chain);
    factor = _mm512_set1_epi8(static_cast<char>(one));
  }
  void multiply() { sum = _mm512_dpbusd_epi32(sum, factor, factor); }
  float result() const { return static_cast<float>(_mm512_reduce_add_epi32(sum)); }
};
#elif defined(__ARM_FEATURE_MATMUL_INT8)
struct Int8 {
  static constexpr int64_t kOperations = 64;
  int32x4_t sum;
  int8x16_t factor;
  void start(float one, int chain) {
    sum = vdupq_n_s32(chain);
    factor = vdupq_n_s8(static_cast<int8_t>(one));
  }
  void multiply() { sum = vmmlaq_s32(sum, factor, factor); }
  float result() const { return static_cast<float>(vaddvq_s32(sum)); }
};
#else
#define OCTAVO_WITHOUT_INT8
#endif

template <class Chain>
void multiply(const ProbeArgs& args, int64_t num_rounds, Worker& worker) {
  Chain chains[kChains];  // with different beginnings, or the compiler would compute one for all
  for (int chain = 0; chain < kChains; ++chain) chains[chain].start(args.one, chain);
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (Chain& chain : chains) chain.multiply();
  }
  float total = 0;
  for (const Chain& chain : chains) total += chain.result();
  args.results[worker.index] = total;
}

// Adds up this worker's share of the data.
void read(const ProbeArgs& args, int64_t num_floats, Worker& worker) {
  constexpr int64_t kStep = 8 * VF::kLanes;
  const Range share = share_of(num_floats, worker, kStep);
  VF sums[8] = {zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()};
  for (int64_t i = share.begin; i + kStep <= share.end; i += kStep) {
    for (int chain = 0; chain < 8; ++chain) sums[chain] = sums[chain] + load(args.data + i + chain * VF::kLanes);
  }
  float total = 0;
  for (const VF& sum : sums) total += reduce_add(sum);
  args.results[worker.index] = total;
}

}  // namespace

extern const ProbeTable kProbeTable = {
    read,
    {multiply<Fp32>, kChains * Fp32::kOperations},
#if defined(OCTAVO_WITHOUT_BF16)
    {nullptr, 0},
#else
    {multiply<Bf16>, kChains * Bf16::kOperations},
#endif
#if defined(OCTAVO_WITHOUT_INT8)
    {nullptr, 0},
#else
    {multiply<Int8>, kChains * Int8::kOperations},
#endif
};

}  // namespace octavo::OCTAVO_ISA
