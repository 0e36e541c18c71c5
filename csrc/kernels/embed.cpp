// embed: out[t] = scale * table[token_ids[t]]. Workers take whole rows. Twin: embed in reference.py.
#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA {

void embed(const EmbedArgs& args, int64_t num_rows, Worker& worker) {
  const Range rows = share_of(num_rows, worker);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    float* out = args.out + row * args.out_stride;
    unpack_row(*args.table, args.token_ids[row], out);
    for (int64_t i = 0; i < args.table->num_inputs; ++i) out[i] *= args.scale;
  }
}

}  // namespace octavo::OCTAVO_ISA
