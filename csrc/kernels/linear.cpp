// linear: out = x W^T + bias, or out += x W^T + bias. x [T, num_inputs], W panels of 32 outputs (packed_weight.h).
//
// Workers take ranges of rows and of panels, never of inputs. Whatever the number of rows, an output is summed along
// the inputs in one order: between chunks of inputs the partial sums rest in memory, unrounded. Twin: linear in
// reference.py.
#include "kernels/kernels.h"
#include "kernels/linear_amx.h"
#include "kernels/linear_float.h"
#include "kernels/linear_grouped.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Rows that pass a panel together: their prepared inputs stay in the second-level cache for usual widths, and their
// sums in the first.
constexpr int64_t kChunkRows = 96;
// Workers share the rows out only while each gets at least this many: fewer would not pay for loading every panel
// twice.
constexpr int64_t kMinRowsPerWorker = 32;

struct Share {
  Range rows;
  Range panels;
};

Share share_of_work(int64_t num_rows, int64_t num_panels, const Worker& worker) {
  int row_parts = 1;
  for (int parts = 2; parts <= worker.count; ++parts) {
    if (worker.count % parts == 0 && num_rows / parts >= kMinRowsPerWorker) row_parts = parts;
  }
  const int panel_parts = worker.count / row_parts;
  const int row_part = worker.index / panel_parts;
  const int panel_part = worker.index % panel_parts;
  return {{num_rows * row_part / row_parts, num_rows * (row_part + 1) / row_parts},
          {num_panels * panel_part / panel_parts, num_panels * (panel_part + 1) / panel_parts}};
}

// Writes one panel's sums to the outputs that exist.
void write_outputs(const LinearArgs& args, int64_t first_row, int64_t num_rows, int64_t first_output,
                   int64_t num_outputs, const float* sums) {
  for (int64_t row = 0; row < num_rows; ++row, sums += kPanelWidth) {
    float* out = args.out + (first_row + row) * args.out_stride + first_output;
    for (int64_t i = 0; i < num_outputs; ++i) {
      const float y = args.bias != nullptr ? sums[i] + args.bias[first_output + i] : sums[i];
      out[i] = args.accumulate ? out[i] + y : y;
    }
  }
}

// Multiplies the next panels: one, or for a single row as many side by side as the kind asks for. Returns their number.
template <class Panel>
int64_t multiply_panels(const PreparedRows& rows, const WeightSegment& segment, Range panels, float* sums,
                        std::byte* chunk_floats) {
  const std::byte* first = segment.panels + panels.begin * segment.panel_bytes;
  if constexpr (Panel::kRowPanels > 1) {
    if (rows.count == 1 && panels.begin + Panel::kRowPanels <= panels.end) {
      for (int64_t i = 0; i < Panel::kRowPanels * kPanelWidth; ++i) sums[i] = 0;
      Panel::multiply_row(rows, first, segment.panel_bytes, segment.num_groups, sums);
      return Panel::kRowPanels;
    }
  }
  for (int64_t i = 0; i < rows.count * kPanelWidth; ++i) sums[i] = 0;
  Panel::multiply(rows, first, segment.num_groups, sums, chunk_floats);
  return 1;
}

// The panels of one segment, for one chunk of rows.
template <class Panel>
void multiply_segment(const LinearArgs& args, Range rows, const WeightSegment& segment, Range panels, Worker& worker) {
  const int64_t num_groups = segment.num_groups;
  const int64_t num_rows = rows.end - rows.begin;
  // An odd number of cache lines, so that rows do not compete for the same sets of a cache.
  const int64_t row_bytes = (Panel::row_bytes(num_groups) + 63) / 128 * 128 + 64;
  const int64_t room_rows = ceil_div(num_rows, Panel::kRowBlock) * Panel::kRowBlock;
  const int64_t sums_bytes = max_of(room_rows, Panel::kRowPanels) * kPanelWidth * sizeof(float);
  std::byte* scratch = worker.scratch(sums_bytes + kFloatChunkBytes + room_rows * row_bytes);
  float* sums = reinterpret_cast<float*>(scratch);
  const PreparedRows prepared{scratch + sums_bytes + kFloatChunkBytes, row_bytes, num_rows};
  for (int64_t row = 0; row < num_rows; ++row) {
    Panel::prepare(args.x + (rows.begin + row) * args.x_stride, args.weight->num_inputs, num_groups, prepared.row(row));
  }
  [[maybe_unused]] const typename Panel::Setup setup{};
  while (panels.begin < panels.end) {
    const int64_t output = panels.begin * kPanelWidth;
    const int64_t num_panels = multiply_panels<Panel>(prepared, segment, panels, sums, scratch + sums_bytes);
    write_outputs(args, rows.begin, num_rows, segment.first_output + output,
                  min_of(num_panels * kPanelWidth, segment.num_outputs - output), sums);
    panels.begin += num_panels;
  }
}

using MultiplySegment = void(const LinearArgs&, Range, const WeightSegment&, Range, Worker&);

MultiplySegment* kernel_for(PanelKind kind) {
  switch (kind) {
    case PanelKind::kFp32:
      return multiply_segment<Fp32Panel>;
    case PanelKind::kBf16:
      return multiply_segment<Bf16TilePanel>;
    case PanelKind::kInt8:
      return multiply_segment<GroupedPanel<Int8Dot, PanelKind::kInt8, uint16_t>>;
    case PanelKind::kInt8Minimum:
      return multiply_segment<GroupedPanel<Int8Dot, PanelKind::kInt8Minimum, float>>;
    case PanelKind::kInt8Group16:
      return multiply_segment<GroupedPanel<Int8Dot, PanelKind::kInt8Group16, float>>;
    case PanelKind::kInt4:
      return multiply_segment<GroupedPanel<Int4Dot, PanelKind::kInt4, uint16_t>>;
    case PanelKind::kInt4Wide:
      return multiply_segment<GroupedPanel<Int4Dot, PanelKind::kInt4Wide, float>>;
  }
  return nullptr;
}

}  // namespace

void linear(const LinearArgs& args, int64_t num_rows, Worker& worker) {
  const PackedWeight& weight = *args.weight;
  const Share share = share_of_work(num_rows, weight.num_panels, worker);
  for (int64_t row = share.rows.begin; row < share.rows.end; row += kChunkRows) {
    const Range rows{row, row + kChunkRows < share.rows.end ? row + kChunkRows : share.rows.end};
    for (int i = 0; i < weight.num_segments; ++i) {
      const WeightSegment& segment = weight.segments[i];
      const int64_t begin = share.panels.begin - segment.first_panel;
      const int64_t end = share.panels.end - segment.first_panel;
      const Range panels{begin > 0 ? begin : 0, end < segment.num_panels ? end : segment.num_panels};
      if (panels.begin < panels.end) kernel_for(segment.kind)(args, rows, segment, panels, worker);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
