// copy_blocks: copies whole KV blocks. Workers take pairs; sources and destinations are disjoint.
#include <cstring>

#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

void copy_blocks(const CopyBlocksArgs& args, int64_t num_pairs, Worker& worker) {
  const Range pairs = share_of(num_pairs, worker);
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t source = args.pairs[2 * pair], destination = args.pairs[2 * pair + 1];
    std::memcpy(args.storage + destination * args.block_bytes, args.storage + source * args.block_bytes,
                args.block_bytes);
  }
}

}  // namespace octavo::OCTAVO_ISA
