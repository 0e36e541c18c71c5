#include "cpu_features.h"

#include <stdexcept>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(OCTAVO_HAVE_AVX512_AMX)
#include <sys/syscall.h>
#include <unistd.h>
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
#ifdef OCTAVO_HAVE_AVX512_AMX
namespace avx512_amx {
Kernel<LinearArgs> linear;
}
#endif
#ifdef OCTAVO_HAVE_EMULATED512
OCTAVO_DECLARE_TABLE(emulated512)
namespace emulated_amx {
Kernel<LinearArgs> linear;
}
#endif
#ifdef OCTAVO_HAVE_NEON
OCTAVO_DECLARE_TABLE(neon)
OCTAVO_DECLARE_TABLE(neon_bf16)
#endif
#undef OCTAVO_DECLARE_TABLE

namespace {

#if defined(__x86_64__)
[[maybe_unused]] bool has_x86_64_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe");
}

[[maybe_unused]] bool has_x86_64_v4() {
  return has_x86_64_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

[[maybe_unused]] bool has_avx512_bf16() {
  return has_x86_64_v4() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

#ifdef OCTAVO_HAVE_AVX512_AMX
// Asks the system for room for the tiles of this process's threads; it answers no where it does not know them.
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, which older headers lack
  constexpr unsigned long kTileData = 18;     // the number of that state in XCR0
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

// The compiler's checks look at CPUID and at XCR0.
bool has_avx512_amx() {
  return has_avx512_bf16() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         may_use_tiles();
}
#endif

[[maybe_unused]] KernelTable with_linear(KernelTable kernels, Kernel<LinearArgs>* linear) {
  kernels.linear = linear;
  return kernels;
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
  static const KernelTable emulated_amx_kernels = with_linear(emulated512::kKernelTable, emulated_amx::linear);
  if (has_x86_64_v3()) {
    sets.push_back({"emulated512", &emulated512::kKernelTable, &emulated512::kProbeTable});
    sets.push_back({"emulated_amx", &emulated_amx_kernels, &emulated512::kProbeTable});
  }
#endif
#ifdef OCTAVO_HAVE_AVX512_AMX  // behind all others: no processor that has it has run these kernels yet
  static const KernelTable amx_kernels = with_linear(avx512_bf16::kKernelTable, avx512_amx::linear);
  if (has_avx512_amx()) sets.push_back({"avx512_amx", &amx_kernels, &avx512_bf16::kProbeTable});
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
