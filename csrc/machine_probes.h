// Measures what the machine can do right now, as the yardstick of the benchmarks.
#pragma once

#include <cstdint>

#include "cpu_features.h"

namespace octavo {

// Rates over all threads together, in units of 10^9 per second; 0 where the instruction set lacks the number format.
struct MachineRates {
  double read_bytes;
  double fp32_operations;
  double bf16_operations;
  double int8_operations;
};

// Takes the best of a few tries of each probe; about half a second. Reads num_bytes of fresh memory, which should
// exceed every cache.
MachineRates probe_machine(const InstructionSet& set, int num_threads, int64_t num_bytes);

}  // namespace octavo
