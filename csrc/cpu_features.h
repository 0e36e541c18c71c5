// Which instruction sets were compiled in, which of them this processor can run, and which one is used.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace octavo {

struct InstructionSet {
  const char* name;
  const KernelTable* kernels;
  const ProbeTable* probes;
};

// The compiled sets that this processor can run: best first, and behind them those that serve only by name.
std::vector<InstructionSet> runnable_instruction_sets();

// Returns the set with that name, or the first one when the name is empty.
// Throws std::invalid_argument when there is none.
InstructionSet find_instruction_set(const std::string& name);

}  // namespace octavo
