// The Python module octavo._cpu. Checks every array and hands raw pointers to the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpu_features.h"
#include "machine_probes.h"
#include "program.h"

namespace nb = nanobind;

namespace octavo {
namespace {

constexpr int64_t kAnySize = -1;

template <class T>
const char* dtype_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, int64_t>) return "int64";
  if constexpr (std::is_same_v<T, uint64_t>) return "uint64";
  if constexpr (std::is_same_v<T, uint8_t>) return "uint8";
}

std::string describe(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + (shape[i] == kAnySize ? std::string("any") : std::to_string(shape[i]));
  }
  return text + "]";
}

// A checked array: its first dimension may have any stride, the others are contiguous.
template <class T>
struct View {
  T* data = nullptr;
  std::vector<int64_t> shape;
  int64_t stride = 0;  // elements from one row to the next

  int64_t rows() const { return shape[0]; }
};

// Checks arrays, and collects what must stay alive as long as the operation that they are bound to.
class Arguments {
 public:
  template <class T>
  View<T> array(const char* name, nb::handle value, const std::vector<int64_t>& shape) {
    using Element = std::remove_const_t<T>;
    using Array = std::conditional_t<std::is_const_v<T>, nb::ndarray<nb::ro>, nb::ndarray<>>;
    Array array;
    const std::string wanted = std::string(name) + ": expected " + dtype_name<Element>() + " " + describe(shape) + ", ";
    constexpr const char* kind = std::is_const_v<T> ? "in an array" : "in a writable array";
    if (!nb::try_cast(value, array, false)) throw nb::type_error((wanted + kind).c_str());
    if (array.dtype() != nb::dtype<Element>()) throw nb::type_error((wanted + "got another dtype").c_str());
    View<T> view{static_cast<T*>(array.data()), {}, 1};
    for (size_t i = 0; i < array.ndim(); ++i) view.shape.push_back(static_cast<int64_t>(array.shape(i)));
    if (!matches(view.shape, shape)) throw nb::value_error((wanted + "got " + describe(view.shape)).c_str());
    int64_t contiguous = 1;
    for (size_t i = array.ndim(); i-- > 1;) {
      if (array.stride(i) != contiguous && array.shape(i) > 1) throw nb::value_error((wanted + "contiguous").c_str());
      contiguous *= view.shape[i];
    }
    view.stride = array.ndim() == 0 ? 0 : array.stride(0);
    if (array.ndim() == 1 && view.stride != 1 && view.shape[0] > 1) {
      throw nb::value_error((wanted + "contiguous").c_str());
    }
    keep(value);
    return view;
  }

  // The same for an array whose rows must follow one another without a gap.
  template <class T>
  View<T> dense(const char* name, nb::handle value, const std::vector<int64_t>& shape) {
    View<T> view = array<T>(name, value, shape);
    int64_t row = 1;
    for (size_t i = 1; i < view.shape.size(); ++i) row *= view.shape[i];
    if (view.stride != row && view.rows() > 1)
      throw nb::value_error((std::string(name) + ": expected contiguous").c_str());
    return view;
  }

  template <class T>
  T* optional(const char* name, nb::handle value, const std::vector<int64_t>& shape) {
    return value.is_none() ? nullptr : dense<T>(name, value, shape).data;
  }

  void keep(nb::handle value) { owners_->push_back(nb::borrow(value)); }

  template <class Args>
  void submit(Executor& executor, std::string name, Kernel<Args>* kernel, const Args& args, RowCount row_count,
              int64_t num_rows) {
    auto bound = [kernel, args](int64_t rows, Worker& worker) { kernel(args, rows, worker); };
    executor.prepare();
    nb::gil_scoped_release release;
    executor.submit({std::move(name), bound, row_count, owners_}, num_rows);
  }

 private:
  static bool matches(const std::vector<int64_t>& got, const std::vector<int64_t>& wanted) {
    if (got.size() != wanted.size()) return false;
    for (size_t i = 0; i < got.size(); ++i) {
      if (wanted[i] != kAnySize && wanted[i] != got[i]) return false;
    }
    return true;
  }

  std::shared_ptr<std::vector<nb::object>> owners_ = std::make_shared<std::vector<nb::object>>();
};

void require(bool holds, const char* message) {
  if (!holds) throw nb::value_error(message);
}

void require(bool holds, const std::string& message) { require(holds, message.c_str()); }

void embed(Executor& executor, nb::handle token_ids, nb::handle table, nb::handle out, float scale) {
  Arguments arguments;
  const auto& weight = nb::cast<const PackedWeight&>(table);
  arguments.keep(table);
  const auto out_view = arguments.array<float>("out", out, {kAnySize, weight.num_inputs});
  const auto ids = arguments.array<const int32_t>("token_ids", token_ids, {out_view.rows()});
  const EmbedArgs args{ids.data, &weight, out_view.data, out_view.stride, scale};
  arguments.submit(executor, "embed", executor.kernels().embed, args, RowCount::kTokens, out_view.rows());
}

void rms_norm(Executor& executor, nb::handle x, nb::handle weight, nb::handle out, float eps, bool accumulate,
              nb::handle rows) {
  Arguments arguments;
  const auto x_view = arguments.array<const float>("x", x, {kAnySize, kAnySize});
  const int64_t size = x_view.shape[1];
  const int64_t num_rows = rows.is_none() ? x_view.rows() : static_cast<int64_t>(nb::len(rows));
  const auto weight_view = arguments.array<const float>("weight", weight, {size});
  const auto out_view = arguments.array<float>("out", out, {num_rows, size});
  const auto* row_ids = arguments.optional<const int32_t>("rows", rows, {num_rows});
  const RmsNormArgs args{x_view.data,     x_view.stride, row_ids, weight_view.data, out_view.data,
                         out_view.stride, size,          eps,     accumulate};
  arguments.submit(executor, "rms_norm", executor.kernels().rms_norm, args, RowCount::kTokens, num_rows);
}

void linear(Executor& executor, nb::handle x, nb::handle packed, nb::handle out, nb::handle bias, bool accumulate) {
  Arguments arguments;
  const auto& weight = nb::cast<const PackedWeight&>(packed);
  arguments.keep(packed);
  const auto x_view = arguments.array<const float>("x", x, {kAnySize, weight.num_inputs});
  const auto out_view = arguments.array<float>("out", out, {x_view.rows(), weight.num_outputs});
  const auto* bias_data = arguments.optional<const float>("bias", bias, {weight.num_outputs});
  const LinearArgs args{x_view.data, x_view.stride, &weight, bias_data, out_view.data, out_view.stride, accumulate};
  const std::string name = "linear " + std::to_string(weight.num_outputs) + " x " + std::to_string(weight.num_inputs);
  arguments.submit(executor, name, executor.kernels().linear, args, RowCount::kTokens, x_view.rows());
}

void rotary(Executor& executor, nb::handle positions, nb::handle inverse_frequencies, nb::handle out, float scale) {
  Arguments arguments;
  const auto frequencies = arguments.array<const double>("inverse_frequencies", inverse_frequencies, {kAnySize});
  const auto out_view = arguments.dense<float>("out", out, {kAnySize, 2, frequencies.rows()});
  const auto position_view = arguments.array<const int32_t>("positions", positions, {out_view.rows()});
  const RotaryArgs args{position_view.data, frequencies.data, out_view.data, frequencies.rows(), scale};
  arguments.submit(executor, "rotary", executor.kernels().rotary, args, RowCount::kTokens, out_view.rows());
}

KVDtype kv_dtype_from_name(const std::string& name) {
  if (name == "fp32") return KVDtype::kFp32;
  if (name == "fp16") return KVDtype::kFp16;
  if (name == "bf16") return KVDtype::kBf16;
  if (name == "int8") return KVDtype::kInt8;
  throw nb::value_error(("kv_dtype: expected fp32, fp16, bf16 or int8, got " + name).c_str());
}

// Reads an octavo.kernels.kv_layout.KVLayer.
KVLayer kv_layer(Arguments& arguments, nb::handle layer) {
  const nb::object layout = layer.attr("layout");
  const auto size = [&](const char* name) { return nb::cast<int64_t>(layout.attr(name)); };
  const auto storage =
      arguments.array<uint8_t>("kv.storage", nb::object(layer.attr("storage")), {kAnySize, size("block_bytes")});
  const int64_t offset = nb::cast<int64_t>(layer.attr("index")) * size("layer_bytes");
  const int64_t head_dim = size("head_dim");
  require(size("block_size") % 16 == 0, "block_size: expected a multiple of 16");
  require(head_dim % 16 == 0 && head_dim >= 16 && head_dim <= 256, "head_dim: expected a multiple of 16 up to 256");
  return {reinterpret_cast<std::byte*>(storage.data + offset),
          storage.stride,
          size("part_bytes"),
          size("scale_bytes"),
          kv_dtype_from_name(nb::cast<std::string>(layout.attr("kv_dtype"))),
          size("block_size"),
          size("num_kv_heads"),
          head_dim};
}

void rope_and_store(Executor& executor, nb::handle qkv, nb::handle rotation, nb::handle slot_mapping, nb::handle kv,
                    int64_t num_q_heads, nb::handle q_norm, nb::handle k_norm, float eps) {
  Arguments arguments;
  const KVLayer layer = kv_layer(arguments, kv);
  const int64_t width = (num_q_heads + 2 * layer.num_kv_heads) * layer.head_dim;
  const auto qkv_view = arguments.array<float>("qkv", qkv, {kAnySize, width});
  const auto rotation_view = arguments.dense<const float>("rotation", rotation, {qkv_view.rows(), 2, kAnySize});
  require(2 * rotation_view.shape[2] <= layer.head_dim, "rotation: rotary_dim exceeds head_dim");
  const auto slots = arguments.array<const int64_t>("slot_mapping", slot_mapping, {qkv_view.rows()});
  const auto* q_weight = arguments.optional<const float>("q_norm", q_norm, {layer.head_dim});
  const auto* k_weight = arguments.optional<const float>("k_norm", k_norm, {layer.head_dim});
  const RopeAndStoreArgs args{qkv_view.data,      qkv_view.stride,
                              rotation_view.data, rotation_view.shape[2],
                              slots.data,         layer,
                              num_q_heads,        q_weight,
                              k_weight,           eps};
  arguments.submit(executor, "rope_and_store", executor.kernels().rope_and_store, args, RowCount::kTokens,
                   qkv_view.rows());
}

void paged_attention(Executor& executor, nb::handle qkv, nb::handle kv, nb::handle step, int64_t group, nb::handle out,
                     int64_t num_q_heads, float scale, int64_t sliding_window, float soft_cap, nb::handle sinks) {
  Arguments arguments;
  const KVLayer layer = kv_layer(arguments, kv);
  const int64_t head_dim = layer.head_dim;
  require(num_q_heads % layer.num_kv_heads == 0, "num_q_heads: expected a multiple of num_kv_heads");
  require(num_q_heads / layer.num_kv_heads <= kMaxGroupSize, "num_q_heads: expected at most 48 to a KV head");
  const int64_t width = (num_q_heads + 2 * layer.num_kv_heads) * head_dim;
  const auto qkv_view = arguments.array<const float>("qkv", qkv, {kAnySize, width});
  const auto out_view = arguments.array<float>("out", out, {qkv_view.rows(), num_q_heads * head_dim});
  const auto tables = arguments.array<const int32_t>("step.block_tables", nb::object(step.attr("block_tables")),
                                                     {kAnySize, kAnySize, kAnySize});
  require(group >= 0 && group < tables.rows(), "group: outside step.block_tables");
  const auto context_lens =
      arguments.array<const int32_t>("step.context_lens", nb::object(step.attr("context_lens")), {kAnySize});
  const int64_t num_seqs = context_lens.rows();
  const auto table_rows =
      arguments.array<const int32_t>("step.table_rows", nb::object(step.attr("table_rows")), {num_seqs});
  const auto cu_seqlens_q =
      arguments.array<const int32_t>("step.cu_seqlens_q", nb::object(step.attr("cu_seqlens_q")), {num_seqs + 1});
  const auto* sink_data = arguments.optional<const float>("sinks", sinks, {num_q_heads});
  const PagedAttentionArgs args{qkv_view.data,
                                qkv_view.stride,
                                layer,
                                tables.data + group * tables.stride,
                                tables.shape[2],
                                table_rows.data,
                                context_lens.data,
                                cu_seqlens_q.data,
                                out_view.data,
                                out_view.stride,
                                num_q_heads,
                                scale,
                                sliding_window,
                                soft_cap,
                                sink_data,
                                &executor.attention_workspace()};
  arguments.submit(executor, "paged_attention", executor.kernels().paged_attention, args, RowCount::kSeqs, num_seqs);
}

void gated_activation(Executor& executor, nb::handle gate_up, nb::handle out, const std::string& activation) {
  Arguments arguments;
  require(activation == "silu" || activation == "gelu_tanh",
          "activation: expected silu or gelu_tanh, got " + activation);
  const auto out_view = arguments.array<float>("out", out, {kAnySize, kAnySize});
  const int64_t size = out_view.shape[1];
  const auto gate = arguments.array<const float>("gate_up", gate_up, {out_view.rows(), 2 * size});
  const GatedActivationArgs args{gate.data,     gate.stride,
                                 out_view.data, out_view.stride,
                                 size,          activation == "silu" ? Activation::kSilu : Activation::kGeluTanh};
  arguments.submit(executor, "gated_activation", executor.kernels().gated_activation, args, RowCount::kTokens,
                   out_view.rows());
}

void soft_cap(Executor& executor, nb::handle x, float cap) {
  Arguments arguments;
  const auto view = arguments.array<float>("x", x, {kAnySize, kAnySize});
  const SoftCapArgs args{view.data, view.stride, view.shape[1], cap};
  arguments.submit(executor, "soft_cap", executor.kernels().soft_cap, args, RowCount::kTokens, view.rows());
}

void copy_blocks(Executor& executor, nb::handle storage, nb::handle pairs) {
  Arguments arguments;
  const auto blocks = arguments.dense<uint8_t>("storage", storage, {kAnySize, kAnySize});
  const auto pair_view = arguments.dense<const int64_t>("pairs", pairs, {kAnySize, 2});
  for (int64_t i = 0; i < 2 * pair_view.rows(); ++i) {
    require(pair_view.data[i] >= 0 && pair_view.data[i] < blocks.rows(), "pairs: block id outside storage");
  }
  const CopyBlocksArgs args{reinterpret_cast<std::byte*>(blocks.data), blocks.shape[1], pair_view.data};
  arguments.submit(executor, "copy_blocks", executor.kernels().copy_blocks, args, RowCount::kTokens, pair_view.rows());
}

// Returns the ids after checking that each is in 0 .. limit - 1.
const int32_t* checked_ids(Arguments& arguments, const char* name, nb::handle ids, int64_t num_ids, int64_t limit) {
  const auto view = arguments.array<const int32_t>(name, ids, {num_ids});
  for (int64_t i = 0; i < view.rows(); ++i) {
    if (view.data[i] >= 0 && view.data[i] < limit) continue;
    require(false, std::string(name) + ": expected 0 to " + std::to_string(limit - 1) + ", got " +
                       std::to_string(view.data[i]));
  }
  return view.data;
}

void adjust_logits(Executor& executor, nb::handle logits, nb::handle rows, nb::handle token_ids, nb::handle repetition,
                   nb::handle additive) {
  Arguments arguments;
  const auto view = arguments.array<float>("logits", logits, {kAnySize, kAnySize});
  const auto num_entries = static_cast<int64_t>(nb::len(rows));
  const AdjustLogitsArgs args{view.data,
                              view.stride,
                              checked_ids(arguments, "rows", rows, num_entries, view.rows()),
                              checked_ids(arguments, "token_ids", token_ids, num_entries, view.shape[1]),
                              arguments.array<const float>("repetition", repetition, {num_entries}).data,
                              arguments.array<const float>("additive", additive, {num_entries}).data};
  arguments.submit(executor, "adjust_logits", executor.kernels().adjust_logits, args, RowCount::kTokens, num_entries);
}

void mask_logits(Executor& executor, nb::handle logits, nb::handle rows, nb::handle bitmasks) {
  Arguments arguments;
  const auto view = arguments.array<float>("logits", logits, {kAnySize, kAnySize});
  const auto num_entries = static_cast<int64_t>(nb::len(rows));
  const auto masks = arguments.array<const int32_t>("bitmasks", bitmasks, {num_entries, (view.shape[1] + 31) / 32});
  const MaskLogitsArgs args{view.data,
                            view.stride,
                            view.shape[1],
                            checked_ids(arguments, "rows", rows, num_entries, view.rows()),
                            reinterpret_cast<const uint32_t*>(masks.data),
                            masks.stride};
  arguments.submit(executor, "mask_logits", executor.kernels().mask_logits, args, RowCount::kTokens, num_entries);
}

void sample(Executor& executor, nb::handle logits, nb::handle rows, nb::handle parameters, nb::handle keys,
            nb::handle out) {
  Arguments arguments;
  const auto view = arguments.array<const float>("logits", logits, {kAnySize, kAnySize});
  const auto num_entries = static_cast<int64_t>(nb::len(rows));
  const SampleArgs args{view.data,
                        view.stride,
                        view.shape[1],
                        checked_ids(arguments, "rows", rows, num_entries, view.rows()),
                        arguments.dense<const float>("parameters", parameters, {num_entries, 4}).data,
                        arguments.dense<const uint64_t>("keys", keys, {num_entries, 3}).data,
                        arguments.array<int32_t>("out", out, {num_entries}).data};
  arguments.submit(executor, "sample", executor.kernels().sample, args, RowCount::kTokens, num_entries);
}

void logprobs(Executor& executor, nb::handle logits, nb::handle rows, nb::handle chosen, nb::handle top_ids,
              nb::handle top_logprobs) {
  Arguments arguments;
  const auto view = arguments.array<const float>("logits", logits, {kAnySize, kAnySize});
  const auto num_entries = static_cast<int64_t>(nb::len(rows));
  const auto ids = arguments.dense<int32_t>("top_ids", top_ids, {num_entries, kAnySize});
  require(ids.shape[1] >= 1 && ids.shape[1] <= view.shape[1] + 1, "top_ids: expected 1 to vocab + 1 columns");
  const LogprobsArgs args{view.data,
                          view.stride,
                          view.shape[1],
                          checked_ids(arguments, "rows", rows, num_entries, view.rows()),
                          checked_ids(arguments, "chosen", chosen, num_entries, view.shape[1]),
                          ids.data,
                          arguments.dense<float>("top_logprobs", top_logprobs, {num_entries, ids.shape[1]}).data,
                          ids.shape[1] - 1};
  arguments.submit(executor, "logprobs", executor.kernels().logprobs, args, RowCount::kTokens, num_entries);
}

void chosen_ranks(Executor& executor, nb::handle logits, nb::handle rows, nb::handle chosen, nb::handle out) {
  Arguments arguments;
  const auto view = arguments.array<const float>("logits", logits, {kAnySize, kAnySize});
  const auto num_entries = static_cast<int64_t>(nb::len(rows));
  const ChosenRanksArgs args{view.data,
                             view.stride,
                             view.shape[1],
                             checked_ids(arguments, "rows", rows, num_entries, view.rows()),
                             checked_ids(arguments, "chosen", chosen, num_entries, view.shape[1]),
                             arguments.array<int32_t>("out", out, {num_entries}).data};
  arguments.submit(executor, "chosen_ranks", executor.kernels().chosen_ranks, args, RowCount::kTokens, num_entries);
}

// Reads one octavo.kernels.host_tensor.HostTensor of two dimensions.
WeightPart weight_part(nb::handle tensor) {
  const auto encoding = weight_encoding_from_name(nb::cast<std::string>(tensor.attr("encoding")));
  const auto [num_rows, num_inputs] = nb::cast<std::pair<int64_t, int64_t>>(tensor.attr("shape"));
  const auto data = nb::cast<nb::ndarray<nb::ro, nb::c_contig>>(nb::object(tensor.attr("data")));
  require(static_cast<int64_t>(data.nbytes()) == num_rows * encoded_row_bytes(encoding, num_inputs),
          "parts: a tensor's data has not the size that its shape and encoding ask for");
  return {encoding, static_cast<const std::byte*>(data.data()), num_rows};
}

PackedWeight pack(EagerExecutor& executor, const nb::list& parts, const std::string& weight_format) {
  require(nb::len(parts) > 0, "parts: expected at least one tensor");
  std::vector<WeightPart> rows;
  const auto num_inputs = nb::cast<int64_t>(parts[0].attr("shape")[nb::int_(1)]);
  require(num_inputs > 0, "parts: expected tensors of at least one column");
  for (nb::handle part : parts) {
    require(nb::cast<int64_t>(part.attr("shape")[nb::int_(1)]) == num_inputs, "parts: tensors of unequal width");
    rows.push_back(weight_part(part));
  }
  const WeightFormat format = weight_format_from_name(weight_format);
  executor.prepare();
  nb::gil_scoped_release release;
  return pack_weight(rows, num_inputs, format, executor.arena(), executor.pool());
}

}  // namespace
}  // namespace octavo

NB_MODULE(_cpu, m) {
  using namespace octavo;
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const InstructionSet& set : runnable_instruction_sets()) names.push_back(set.name);
    return names;
  });

  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_prop_ro("shape", [](const PackedWeight& w) { return nb::make_tuple(w.num_outputs, w.num_inputs); })
      .def_prop_ro("weight_format", [](const PackedWeight& w) { return weight_format_name(w.format); })
      .def_prop_ro("num_bytes", [](const PackedWeight& w) { return w.num_bytes; });
  m.def("pack_weight", &pack);

  nb::class_<OperationTime>(m, "OperationTime")
      .def_ro("num_calls", &OperationTime::num_calls)
      .def_ro("seconds", &OperationTime::seconds);
  nb::class_<Executor>(m, "Executor");
  nb::class_<EagerExecutor, Executor>(m, "EagerExecutor")
      .def("__init__",
           [](EagerExecutor* self, int num_threads, const std::string& instruction_set) {
             require(num_threads >= 1, "num_threads: expected at least 1, got " + std::to_string(num_threads));
             new (self) EagerExecutor(num_threads, *find_instruction_set(instruction_set).kernels);
           })
      .def_prop_ro("num_threads", [](EagerExecutor& self) { return self.pool().num_threads(); })
      .def("start_profile", &EagerExecutor::start_profile)
      .def("profile", [](EagerExecutor& self) { return self.profile() == nullptr ? Profile() : *self.profile(); });
  nb::class_<Program, Executor>(m, "Program")
      .def(nb::init<std::shared_ptr<EagerExecutor>>())
      .def_prop_ro("num_operations", &Program::num_operations)
      .def("run", [](Program& self, int64_t num_tokens, int64_t num_seqs) {
        self.prepare();
        nb::gil_scoped_release release;
        self.run(num_tokens, num_seqs);
      });

  nb::class_<MachineRates>(m, "MachineRates")
      .def_ro("read_bytes", &MachineRates::read_bytes)
      .def_ro("fp32_operations", &MachineRates::fp32_operations)
      .def_ro("bf16_operations", &MachineRates::bf16_operations)
      .def_ro("int8_operations", &MachineRates::int8_operations);
  m.def("probe_machine", [](const std::string& instruction_set, int num_threads, int64_t num_bytes) {
    require(num_threads >= 1, "num_threads: expected at least 1, got " + std::to_string(num_threads));
    nb::gil_scoped_release release;
    return probe_machine(find_instruction_set(instruction_set), num_threads, num_bytes);
  });

  m.def("embed", &embed);
  m.def("rms_norm", &rms_norm, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg("rows").none());
  m.def("linear", &linear, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("bias").none(), nb::arg());
  m.def("rotary", &rotary);
  m.def("rope_and_store", &rope_and_store, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg());
  m.def("paged_attention", &paged_attention, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("sinks").none());
  m.def("gated_activation", &gated_activation);
  m.def("soft_cap", &soft_cap);
  m.def("copy_blocks", &copy_blocks);
  m.def("adjust_logits", &adjust_logits);
  m.def("mask_logits", &mask_logits);
  m.def("sample", &sample);
  m.def("logprobs", &logprobs);
  m.def("chosen_ranks", &chosen_ranks);
}
