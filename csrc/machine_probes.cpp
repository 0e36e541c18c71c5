#include "machine_probes.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "aligned_storage.h"
#include "thread_pool.h"

namespace octavo {
namespace {

constexpr int kTries = 5;
constexpr int64_t kRounds = 1'000'000;  // some milliseconds: long against the start of the threads

// The best rate, in 10^9 per second, of `work` units that one run of the kernel does.
double best_rate(ThreadPool& pool, Kernel<ProbeArgs>* kernel, const ProbeArgs& args, int64_t num_rows, double work) {
  double best_s = 1e30;
  for (int i = 0; i < kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](Worker& worker) { kernel(args, num_rows, worker); });
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return work / best_s * 1e-9;
}

double multiply_rate(ThreadPool& pool, const MultiplyProbe& probe, const ProbeArgs& args) {
  if (probe.kernel == nullptr) return 0;
  const double work = static_cast<double>(probe.operations_per_round) * kRounds * pool.num_threads();
  return best_rate(pool, probe.kernel, args, kRounds, work);
}

}  // namespace

MachineRates probe_machine(const InstructionSet& set, int num_threads, int64_t num_bytes) {
  ThreadPool pool(num_threads);
  AlignedStorage storage(num_bytes);
  std::memset(storage.data(), 1, num_bytes);  // pages that were never written would all be read from one page of zeros
  std::vector<float> results(num_threads);
  volatile float one = 1;
  const ProbeArgs args{reinterpret_cast<const float*>(storage.data()), one, results.data()};
  return {best_rate(pool, set.probes->read, args, num_bytes / 4, static_cast<double>(num_bytes)),
          multiply_rate(pool, set.probes->fp32, args), multiply_rate(pool, set.probes->bf16, args),
          multiply_rate(pool, set.probes->int8, args)};
}

}  // namespace octavo
