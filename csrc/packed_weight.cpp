#include "packed_weight.h"

#include <cstring>
#include <stdexcept>

#include "float16.h"

namespace octavo {
namespace {

struct FormatName {
  WeightFormat format;
  const char* name;
};

constexpr FormatName kFormatNames[] = {{WeightFormat::kFp32, "fp32"},
                                       {WeightFormat::kBf16, "bf16"},
                                       {WeightFormat::kInt8, "int8"},
                                       {WeightFormat::kInt4, "int4"}};

PanelKind kind_for(WeightEncoding encoding, WeightFormat format) {
  if (format == WeightFormat::kFp32) return PanelKind::kFp32;
  if (format == WeightFormat::kBf16) return PanelKind::kBf16;
  switch (encoding) {
    case WeightEncoding::kQ4_0:
    case WeightEncoding::kQ4_1:
      return PanelKind::kInt4;
    case WeightEncoding::kQ4K:
      return PanelKind::kInt4Wide;
    case WeightEncoding::kQ5_0:
    case WeightEncoding::kQ8_0:
      return PanelKind::kInt8;
    case WeightEncoding::kQ5_1:
    case WeightEncoding::kQ5K:
      return PanelKind::kInt8Minimum;
    case WeightEncoding::kQ6K:
      return PanelKind::kInt8Group16;
    case WeightEncoding::kF32:
    case WeightEncoding::kF16:
    case WeightEncoding::kBf16:
      break;
  }
  return format == WeightFormat::kInt8 ? PanelKind::kInt8 : PanelKind::kInt4;
}

// One output's place in a group of a panel.
struct Column {
  std::byte* group;
  int index;

  void set_word(int row, uint32_t word) const {
    std::memcpy(group + (row * kPanelWidth + index) * sizeof(word), &word, sizeof(word));
  }
  uint32_t word(int row) const {
    uint32_t result;
    std::memcpy(&result, group + (row * kPanelWidth + index) * sizeof(result), sizeof(result));
    return result;
  }

  // Scale `place`, counted through the scales and then the minimum.
  void set_scale(const PanelLayout& layout, int place, float value) const {
    std::byte* p = group + layout.quant_bytes() + (place * kPanelWidth + index) * layout.scale_bytes;
    const uint16_t half = to_fp16(value);
    std::memcpy(p, layout.scale_bytes == 2 ? static_cast<const void*>(&half) : &value, layout.scale_bytes);
  }
  float scale(const PanelLayout& layout, int place) const {
    const std::byte* p = group + layout.quant_bytes() + (place * kPanelWidth + index) * layout.scale_bytes;
    float value;
    uint16_t half;
    std::memcpy(layout.scale_bytes == 2 ? static_cast<void*>(&half) : &value, p, layout.scale_bytes);
    return layout.scale_bytes == 2 ? from_fp16(half) : value;
  }
};

uint32_t four_bytes(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

template <PanelKind kKind>
void write_floats(const float* values, const Column& column) {
  for (int row = 0; row < panel_layout(kKind).words(); ++row) {
    if constexpr (kKind == PanelKind::kFp32) {
      column.set_word(row, bit_cast<uint32_t>(values[row]));
    } else {
      column.set_word(row, to_bf16(values[2 * row]) | static_cast<uint32_t>(to_bf16(values[2 * row + 1])) << 16);
    }
  }
}

template <PanelKind kKind>
void write_quants(const QuantBlock& block, const Column& column) {
  constexpr PanelLayout layout = panel_layout(kKind);
  for (int row = 0; row < layout.words(); ++row) {
    if constexpr (layout.bits == 8) {
      column.set_word(row, four_bytes(block.quants + 4 * row));
    } else {
      column.set_word(row, four_bytes(block.quants + 8 * row) | four_bytes(block.quants + 8 * row + 4) << 4);
    }
  }
  for (int i = 0; i < layout.scales_per_group; ++i) column.set_scale(layout, i, block.scales[i]);
  if constexpr (layout.minimum) column.set_scale(layout, layout.scales_per_group, block.minimum);
}

void read_column(const PanelLayout& layout, const Column& column, float* values) {
  QuantBlock block{};
  for (int row = 0; row < layout.words(); ++row) {
    const uint32_t word = column.word(row);
    const uint32_t low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
    switch (layout.bits) {
      case 32:
        values[row] = bit_cast<float>(word);
        break;
      case 16:
        values[2 * row] = from_bf16(static_cast<uint16_t>(word));
        values[2 * row + 1] = from_bf16(static_cast<uint16_t>(word >> 16));
        break;
      case 8:
        std::memcpy(block.quants + 4 * row, &word, sizeof(word));
        break;
      default:
        std::memcpy(block.quants + 8 * row, &low, sizeof(low));
        std::memcpy(block.quants + 8 * row + 4, &high, sizeof(high));
    }
  }
  if (layout.scales_per_group == 0) return;
  block.zero = layout.bits == 8 ? 128 : 0;
  block.scales[0] = column.scale(layout, 0);
  block.scales[1] = column.scale(layout, layout.scales_per_group - 1);
  block.minimum = layout.minimum ? column.scale(layout, layout.scales_per_group) : 0;
  to_floats(block, values);
}

// Where the rows of a segment come from.
struct SegmentSource {
  WeightSegment segment;
  std::vector<WeightPart> parts;
};

// Stacks the parts; neighbours of one kind share a segment, unless a panel would then mix two parts.
std::vector<SegmentSource> plan_segments(const std::vector<WeightPart>& parts, int64_t num_inputs,
                                         WeightFormat format) {
  std::vector<SegmentSource> sources;
  int64_t output = 0, panel = 0;
  const int64_t num_groups = (num_inputs + kGroupSize - 1) / kGroupSize;
  for (const WeightPart& part : parts) {
    const PanelKind kind = kind_for(part.encoding, format);
    const bool joins = !sources.empty() && sources.back().segment.kind == kind && output % kPanelWidth == 0 &&
                       sources.back().segment.num_outputs % kPanelWidth == 0;
    if (!joins) {
      sources.push_back(
          {{kind, output, 0, panel, 0, num_groups, num_groups * panel_layout(kind).group_bytes(), nullptr}, {}});
    }
    SegmentSource& source = sources.back();
    const int64_t num_panels = (part.num_rows + kPanelWidth - 1) / kPanelWidth;
    source.segment.num_outputs += part.num_rows;
    source.segment.num_panels += num_panels;
    source.parts.push_back(part);
    output += part.num_rows;
    panel += num_panels;
  }
  if (sources.size() > PackedWeight::kMaxSegments) {
    throw std::invalid_argument("parts: at most " + std::to_string(PackedWeight::kMaxSegments) + " of different kinds");
  }
  return sources;
}

template <PanelKind kKind>
void pack_row(const WeightPart& part, const std::byte* row, int64_t num_inputs, std::byte* panel, int index) {
  constexpr PanelLayout layout = panel_layout(kKind);
  const bool dense = is_dense(part.encoding);
  for (int64_t group = 0; group * kGroupSize < num_inputs; ++group) {
    const Column column{panel + group * layout.group_bytes(), index};
    const int64_t left = num_inputs - group * kGroupSize;
    float values[kGroupSize];
    if (dense || layout.bits > 8) read_floats(part.encoding, row, group, left < kGroupSize ? left : kGroupSize, values);
    if constexpr (layout.bits > 8) {
      write_floats<kKind>(values, column);
    } else {
      QuantBlock block;
      if (!dense) {
        read_quants(part.encoding, row, group, block);
      } else {
        layout.bits == 4 ? round_to_int4(values, block) : round_to_int8(values, block);
      }
      write_quants<kKind>(block, column);
    }
  }
}

using PackRow = void(const WeightPart&, const std::byte*, int64_t, std::byte*, int);

PackRow* row_packer(PanelKind kind) {
  switch (kind) {
    case PanelKind::kFp32:
      return pack_row<PanelKind::kFp32>;
    case PanelKind::kBf16:
      return pack_row<PanelKind::kBf16>;
    case PanelKind::kInt8:
      return pack_row<PanelKind::kInt8>;
    case PanelKind::kInt8Minimum:
      return pack_row<PanelKind::kInt8Minimum>;
    case PanelKind::kInt8Group16:
      return pack_row<PanelKind::kInt8Group16>;
    case PanelKind::kInt4:
      return pack_row<PanelKind::kInt4>;
    case PanelKind::kInt4Wide:
      return pack_row<PanelKind::kInt4Wide>;
  }
  return nullptr;
}

// Packs this worker's share of the panels.
void pack_panels(const SegmentSource& source, int64_t num_inputs, const Worker& worker) {
  const WeightSegment& segment = source.segment;
  PackRow* const pack_row = row_packer(segment.kind);
  int64_t first_panel = 0;
  for (const WeightPart& part : source.parts) {
    const int64_t row_bytes = encoded_row_bytes(part.encoding, num_inputs);
    const int64_t num_panels = (part.num_rows + kPanelWidth - 1) / kPanelWidth;
    const int64_t end = num_panels * (worker.index + 1) / worker.count;
    for (int64_t panel = num_panels * worker.index / worker.count; panel < end; ++panel) {
      std::byte* panel_bytes = segment.panels + (first_panel + panel) * segment.panel_bytes;
      for (int index = 0; index < kPanelWidth && panel * kPanelWidth + index < part.num_rows; ++index) {
        const std::byte* row = part.data + (panel * kPanelWidth + index) * row_bytes;
        pack_row(part, row, num_inputs, panel_bytes, index);
      }
    }
    first_panel += num_panels;
  }
}

}  // namespace

WeightFormat weight_format_from_name(const std::string& name) {
  for (const FormatName& entry : kFormatNames) {
    if (name == entry.name) return entry.format;
  }
  throw std::invalid_argument("weight_format: expected fp32, bf16, int8 or int4, got " + name);
}

const char* weight_format_name(WeightFormat format) { return kFormatNames[static_cast<int>(format)].name; }

PackedWeight pack_weight(const std::vector<WeightPart>& parts, int64_t num_inputs, WeightFormat format,
                         WeightArena& arena, ThreadPool& pool) {
  std::vector<SegmentSource> sources = plan_segments(parts, num_inputs, format);
  int64_t num_bytes = 0;
  for (const SegmentSource& source : sources) num_bytes += source.segment.num_panels * source.segment.panel_bytes;
  PackedWeight weight{};
  weight.format = format;
  weight.num_inputs = num_inputs;
  weight.num_segments = static_cast<int>(sources.size());
  weight.panels = arena.allocate(num_bytes);
  weight.num_bytes = num_bytes;
  std::byte* panels = weight.panels.get();
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i].segment.panels = panels;
    panels += sources[i].segment.num_panels * sources[i].segment.panel_bytes;
    weight.segments[i] = sources[i].segment;
    weight.num_outputs += sources[i].segment.num_outputs;
    weight.num_panels += sources[i].segment.num_panels;
  }
  pool.run([&](Worker& worker) {
    for (const SegmentSource& source : sources) pack_panels(source, num_inputs, worker);
  });
  return weight;
}

void unpack_row(const PackedWeight& weight, int64_t row, float* out) {
  const WeightSegment* segment = weight.segments;
  while (row >= segment->first_output + segment->num_outputs) ++segment;
  const int64_t output = row - segment->first_output;
  const PanelLayout layout = panel_layout(segment->kind);
  std::byte* panel = segment->panels + output / kPanelWidth * segment->panel_bytes;
  for (int64_t group = 0; group * kGroupSize < weight.num_inputs; ++group) {
    float values[kGroupSize];
    read_column(layout, {panel + group * layout.group_bytes(), static_cast<int>(output % kPanelWidth)}, values);
    const int64_t left = weight.num_inputs - group * kGroupSize;
    std::memcpy(out + group * kGroupSize, values, (left < kGroupSize ? left : kGroupSize) * sizeof(float));
  }
}

}  // namespace octavo
