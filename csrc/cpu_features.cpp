#include "cpu_features.h"

#include <stdexcept>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace octavo {

#define OCTAVO_DECLARE_TABLE(isa)        \
  namespace isa {                        \
  extern const KernelTable kKernelTable; \
  extern const ProbeTable kProbeTable;   \
  }
#ifdef OCTAVO_HAVE_AVX2
OCTAVO_DECLARE_TABLE(avx2)
#endif
#ifdef OCTAVO_HAVE_AVX512
OCTAVO_DECLARE_TABLE(avx512)
OCTAVO_DECLARE_TABLE(avx512_bf16)
#endif
#ifdef OCTAVO_HAVE_EMULATED512
OCTAVO_DECLARE_TABLE(emulated512)
#endif
#ifdef OCTAVO_HAVE_NEON
OCTAVO_DECLARE_TABLE(neon)
OCTAVO_DECLARE_TABLE(neon_bf16)
#endif
#undef OCTAVO_DECLARE_TABLE

namespace {

#if defined(__x86_64__)
[[maybe_unused]] bool has_x86_64_v3() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

[[maybe_unused]] bool has_x86_64_v4() {
  return has_x86_64_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

[[maybe_unused]] bool has_avx512_bf16() {
  return has_x86_64_v4() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
bool has_neon_bf16() {
  const bool dot_product = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
  const unsigned long more = getauxval(AT_HWCAP2);
  return dot_product && (more & HWCAP2_BF16) && (more & HWCAP2_I8MM);
}
#endif

}  // namespace

std::vector<InstructionSet> runnable_instruction_sets() {
  std::vector<InstructionSet> sets;
#ifdef OCTAVO_HAVE_AVX512
  if (has_avx512_bf16()) sets.push_back({"avx512_bf16", &avx512_bf16::kKernelTable, &avx512_bf16::kProbeTable});
  if (has_x86_64_v4()) sets.push_back({"avx512", &avx512::kKernelTable, &avx512::kProbeTable});
#endif
#ifdef OCTAVO_HAVE_AVX2
  if (has_x86_64_v3()) sets.push_back({"avx2", &avx2::kKernelTable, &avx2::kProbeTable});
#endif
#ifdef OCTAVO_HAVE_EMULATED512
  if (has_x86_64_v3()) sets.push_back({"emulated512", &emulated512::kKernelTable, &emulated512::kProbeTable});
#endif
#ifdef OCTAVO_HAVE_NEON
  if (has_neon_bf16()) sets.push_back({"neon_bf16", &neon_bf16::kKernelTable, &neon_bf16::kProbeTable});
  sets.push_back({"neon", &neon::kKernelTable, &neon::kProbeTable});
#endif
  return sets;
}

InstructionSet find_instruction_set(const std::string& name) {
  const std::vector<InstructionSet> sets = runnable_instruction_sets();
  std::string allowed;
  for (const InstructionSet& set : sets) {
    if (name.empty() || name == set.name) return set;
    allowed += std::string(allowed.empty() ? "" : ", ") + set.name;
  }
  if (sets.empty()) throw std::invalid_argument("this processor lacks AVX2 and FMA, which octavo needs");
  throw std::invalid_argument("instruction set: this processor and build have " + allowed + ", not " + name);
}

}  // namespace octavo
