// The functions of cuDNN that attention and convolutions call, on the host. They check at least as
// strictly as the library:
// - each attribute belongs to its kind, has its type and count, and is set before the descriptor is
//   finalized;
// - a kind's required attributes are present, and extents match each other;
// - a run passes every tensor and a workspace.
// Violations are refused with a reason.
#include "tests/simt/cudnn_host.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "src/core/error.h"
#include "src/kernels/cuda/cudnn/handle.h"
#include "src/kernels/cuda/cudnn/library.h"
#include "src/kernels/cuda/device/launch.h"

namespace espalier::simt {

CudnnHost& cudnn_host() {
  thread_local CudnnHost host;
  return host;
}

namespace cudnn {
namespace {

using kernels::cudnn::Handle;
using kernels::cudnn::Note;
using kernels::cudnn::Object;
using kernels::cudnn::Status;

constexpr Status kBadParameter{2000}, kNotSupported{3000};
constexpr auto kSuccess = Status::success;

thread_local std::string reason;

Status refuse(Status status, const std::string& why) {
  reason = why;
  return status;
}

struct Context {
  Queue* queue = nullptr;
};

std::shared_ptr<Descriptor>& own(Object object) {
  return *static_cast<std::shared_ptr<Descriptor>*>(object);
}

struct Rule {
  Kind kind;
  Attribute what;
  Type type;
  int64_t count = 1;  ///< 0: any
  bool needed = true;
};

using enum Attribute;
constexpr Rule kRules[] = {
    {Kind::tensor, tensor_id, Type::int64},
    {Kind::tensor, tensor_type, Type::data},
    {Kind::tensor, tensor_dimensions, Type::int64, 4},
    {Kind::tensor, tensor_strides, Type::int64, 4},
    {Kind::tensor, tensor_alignment, Type::int64},
    {Kind::tensor, tensor_virtual, Type::boolean, 1, false},
    {Kind::tensor, tensor_by_value, Type::boolean, 1, false},
    {Kind::matmul, matmul_precision, Type::data},
    {Kind::reduction, reduction_operator, Type::reduction},
    {Kind::reduction, reduction_precision, Type::data},
    {Kind::pointwise, pointwise_mode, Type::pointwise},
    {Kind::pointwise, pointwise_precision, Type::data},
    {Kind::pointwise, pointwise_axis, Type::int64, 1, false},
    {Kind::convolution, convolution_precision, Type::data},
    {Kind::convolution, Attribute::convolution_mode, Type::convolution_mode},
    {Kind::convolution, convolution_axes, Type::int64},
    {Kind::convolution, convolution_dilations, Type::int64, 2},
    {Kind::convolution, convolution_strides, Type::int64, 2},
    {Kind::convolution, convolution_paddings_before, Type::int64, 2},
    {Kind::convolution, convolution_paddings_after, Type::int64, 2},
    {Kind::operation_convolution_forward, operation_convolution_forward_alpha, Type::fp32},
    {Kind::operation_convolution_forward, operation_convolution_forward_beta, Type::fp32},
    {Kind::operation_convolution_forward, operation_convolution_forward_mode, Type::object},
    {Kind::operation_convolution_forward, operation_convolution_forward_w, Type::object},
    {Kind::operation_convolution_forward, operation_convolution_forward_x, Type::object},
    {Kind::operation_convolution_forward, operation_convolution_forward_y, Type::object},
    {Kind::operation_convolution_input, operation_convolution_input_alpha, Type::fp32},
    {Kind::operation_convolution_input, operation_convolution_input_beta, Type::fp32},
    {Kind::operation_convolution_input, operation_convolution_input_mode, Type::object},
    {Kind::operation_convolution_input, operation_convolution_input_w, Type::object},
    {Kind::operation_convolution_input, operation_convolution_input_dx, Type::object},
    {Kind::operation_convolution_input, operation_convolution_input_dy, Type::object},
    {Kind::operation_convolution_weight, operation_convolution_weight_alpha, Type::fp32},
    {Kind::operation_convolution_weight, operation_convolution_weight_beta, Type::fp32},
    {Kind::operation_convolution_weight, operation_convolution_weight_mode, Type::object},
    {Kind::operation_convolution_weight, operation_convolution_weight_dw, Type::object},
    {Kind::operation_convolution_weight, operation_convolution_weight_x, Type::object},
    {Kind::operation_convolution_weight, operation_convolution_weight_dy, Type::object},
    {Kind::operation_matmul, operation_matmul_a, Type::object},
    {Kind::operation_matmul, operation_matmul_b, Type::object},
    {Kind::operation_matmul, operation_matmul_c, Type::object},
    {Kind::operation_matmul, operation_matmul_mode, Type::object},
    {Kind::operation_reduction, operation_reduction_x, Type::object},
    {Kind::operation_reduction, operation_reduction_y, Type::object},
    {Kind::operation_reduction, operation_reduction_mode, Type::object},
    {Kind::operation_reshape, operation_reshape_x, Type::object},
    {Kind::operation_reshape, operation_reshape_y, Type::object},
    {Kind::operation_pointwise, operation_pointwise_mode, Type::object},
    {Kind::operation_pointwise, operation_pointwise_x, Type::object},
    {Kind::operation_pointwise, operation_pointwise_b, Type::object, 1, false},
    {Kind::operation_pointwise, operation_pointwise_t, Type::object, 1, false},
    {Kind::operation_pointwise, operation_pointwise_y, Type::object},
    {Kind::graph, graph_operations, Type::object, 0},
    {Kind::graph, graph_handle, Type::handle},
    {Kind::heuristics, heuristics_graph, Type::object},
    {Kind::heuristics, heuristics_mode, Type::heuristics},
    {Kind::plan, plan_handle, Type::handle},
    {Kind::plan, plan_engine_config, Type::object},
    {Kind::variant_pack, variant_pack_ids, Type::int64, 0},
    {Kind::variant_pack, variant_pack_pointers, Type::pointer, 0},
    {Kind::variant_pack, variant_pack_workspace, Type::pointer},
};

size_t size_of(Type type) {
  switch (type) {
    case Type::boolean:
      return sizeof(bool);
    case Type::int64:
    case Type::handle:
    case Type::pointer:
    case Type::object:
      return 8;
    default:
      return sizeof(int);
  }
}

Status create(Kind kind, Object* made) {
  *made = new std::shared_ptr<Descriptor>(std::make_shared<Descriptor>());
  own(*made)->kind = kind;
  return kSuccess;
}

Status destroy(Object object) {
  delete &own(object);
  return kSuccess;
}

Status set(Object object, Attribute what, Type type, int64_t count, const void* from) {
  Descriptor& to = *own(object);
  const auto* rule = std::ranges::find_if(
      kRules, [&](const Rule& one) { return one.kind == to.kind && one.what == what; });
  if (rule == std::end(kRules) || to.finished || rule->type != type || count < 1 ||
      (rule->count != 0 && rule->count != count)) {
    return refuse(kBadParameter, "an attribute of another kind, type or count, or too late");
  }
  Value value{.type = type, .count = count};
  const auto* first = static_cast<const std::byte*>(from);
  value.bytes.assign(first, first + static_cast<size_t>(count) * size_of(type));
  for (int64_t i = 0; type == Type::object && i < count; ++i) {
    const auto& named = own(static_cast<const Object*>(from)[i]);
    if (!named->finished) {
      return refuse(kBadParameter, "a descriptor that is not finished");
    }
    value.objects.push_back(named);
  }
  to.values.insert_or_assign(what, std::move(value));
  return kSuccess;
}

struct ConvolutionOperands {
  const Descriptor &x, &w, &y;
};

/// By operands_of; the last is the result.
ConvolutionOperands convolution_operands(const Descriptor& operation) {
  const std::vector<Attribute> names = operands_of(operation);
  const auto at = [&](size_t i) -> const Descriptor& { return operation.object(names[i]); };
  switch (operation.kind) {
    case Kind::operation_convolution_input:
      return {.x = at(2), .w = at(0), .y = at(1)};
    case Kind::operation_convolution_weight:
      return {.x = at(0), .w = at(2), .y = at(1)};
    default:
      return {.x = at(0), .w = at(1), .y = at(2)};
  }
}

/// Extents, y = conv(x, w) without scaling or addend, and channels side by side in all tensors.
bool fits_convolution(const Descriptor& operation) {
  const auto& [x, w, y] = convolution_operands(operation);
  const Descriptor& mode = operation.object(mode_of(operation.kind));
  bool fits = x.extent(0) == y.extent(0) && x.extent(1) == w.extent(1) &&
              y.extent(1) == w.extent(0) && mode.get<int64_t>(convolution_axes) == 2 &&
              mode.get<Data>(convolution_precision) == Data::fp32;
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t before = mode.number(convolution_paddings_before, axis);
    const int64_t after = mode.number(convolution_paddings_after, axis);
    const int64_t steps = (x.extent(axis + 2) + before + after - w.extent(axis + 2)) /
                          mode.number(convolution_strides, axis);
    fits = fits && mode.number(convolution_dilations, axis) == 1 && y.extent(axis + 2) == steps + 1;
  }
  for (const auto& [what, value] : operation.values) {
    const bool scale = value.type == Type::fp32;
    const bool alpha = scale && (what == operation_convolution_forward_alpha ||
                                 what == operation_convolution_input_alpha ||
                                 what == operation_convolution_weight_alpha);
    fits = fits && (!scale || operation.get<float>(what) == (alpha ? 1.0F : 0.0F));
  }
  return fits && std::ranges::all_of(std::array{&x, &w, &y}, [](const Descriptor* tensor) {
           return tensor->stride(1) == 1 && tensor->stride(3) == tensor->extent(1) &&
                  tensor->stride(2) == tensor->extent(3) * tensor->extent(1) &&
                  tensor->stride(0) == tensor->extent(2) * tensor->stride(2);
         });
}

/// Whether extents of operands match those of the result.
bool fits(const Descriptor& operation) {
  if (is_convolution(operation.kind)) {
    return fits_convolution(operation);
  }
  const std::vector<Attribute> names = operands_of(operation);
  const Descriptor& y = operation.object(names.back());
  if (operation.kind == Kind::operation_matmul) {
    const Descriptor& a = operation.object(names[0]);
    const Descriptor& b = operation.object(names[1]);
    return a.extent(2) == y.extent(2) && a.extent(3) == b.extent(2) && b.extent(3) == y.extent(3) &&
           a.extent(0) == b.extent(0) && a.extent(1) == b.extent(1);
  }
  const Descriptor& x = operation.object(names[0]);
  if (operation.kind == Kind::operation_reshape) {
    return x.extent(2) == y.extent(3) && x.extent(3) == y.extent(2) && x.stride(2) == y.stride(3) &&
           x.stride(3) == y.stride(2);
  }
  if (operation.kind == Kind::operation_reduction) {
    return y.extent(3) == 1 && x.extent(2) == y.extent(2) && x.extent(1) == y.extent(1);
  }
  return std::ranges::all_of(names, [&](Attribute name) {
    for (size_t axis = 0; axis < 4; ++axis) {
      const int64_t extent = operation.object(name).extent(axis);
      if (extent != 1 && extent != y.extent(axis)) {
        return false;
      }
    }
    return true;
  });
}

bool is_operation(Kind kind) {
  return kind == Kind::operation_matmul || kind == Kind::operation_pointwise ||
         kind == Kind::operation_reduction || kind == Kind::operation_reshape ||
         is_convolution(kind);
}

Status finish(Object object) {
  Descriptor& of = *own(object);
  for (const Rule& rule : kRules) {
    if (rule.kind == of.kind && rule.needed && !of.has(rule.what)) {
      return refuse(kBadParameter, fmt::format("no attribute {}", static_cast<int>(rule.what)));
    }
  }
  if (of.finished || (is_operation(of.kind) && !fits(of))) {
    return refuse(kBadParameter, "extents that do not fit each other, or finished twice");
  }
  if (of.kind == Kind::plan) {
    ++cudnn_host().plans;
  }
  of.finished = true;
  return kSuccess;
}

/// Tensors of a graph that are in memory, or scalars.
std::map<int64_t, const Descriptor*> tensors_in_memory(const Descriptor& graph) {
  std::map<int64_t, const Descriptor*> found;
  for (const auto& operation : graph.values.at(graph_operations).objects) {
    for (const Attribute name : operands_of(*operation)) {
      const Descriptor& tensor = operation->object(name);
      if (!tensor.flag(tensor_virtual)) {
        found[tensor.get<int64_t>(tensor_id)] = &tensor;
      }
    }
  }
  return found;
}

/// The convolution of a graph, its first operation, or null in attention.
const Descriptor* convolution_in(const Descriptor& graph) {
  const Descriptor* first = graph.values.at(graph_operations).objects.front().get();
  return is_convolution(first->kind) ? first : nullptr;
}

/// Columns of heads: those of the only bf16 tensors that are in memory without conversion. Channels
/// of a convolution's input.
int64_t width_of(const Descriptor& graph) {
  const Descriptor* convolution = convolution_in(graph);
  return convolution != nullptr ? convolution_operands(*convolution).x.extent(1)
                                : tensors_in_memory(graph).at(1)->extent(3);
}

/// Whether the graph has an fp32 product in memory: the sum of dq, to which all blocks add.
bool has_sum_of_dq(const Descriptor& graph) {
  return std::ranges::any_of(graph.values.at(graph_operations).objects, [](const auto& operation) {
    return operation->kind == Kind::operation_matmul &&
           !operation->object(operation_matmul_c).flag(tensor_virtual) &&
           operation->object(operation_matmul_c).template get<Data>(tensor_type) == Data::fp32;
  });
}

/// Gradients of scores, or, as on devices before 9.0, another copy of the sum of dq in rows.
int64_t workspace_of(const Descriptor& graph) {
  if (convolution_in(graph) != nullptr) {
    return static_cast<int64_t>(cudnn_host().more_workspace);
  }
  const auto tensors = tensors_in_memory(graph);
  const Descriptor& q = *tensors.at(1);
  constexpr size_t kForward = 7;
  const auto rows = [&](int64_t of) { return (q.extent(2) + of - 1) / of * of; };
  const int64_t each = tensors.size() <= kForward ? 0
                       : has_sum_of_dq(graph)     ? 4 * rows(8) * q.extent(3)
                                                  : 2 * rows(128) * rows(128);
  return static_cast<int64_t>(cudnn_host().more_workspace) + q.extent(0) * q.extent(1) * each;
}

bool is_half(const Descriptor& tensor) {
  const auto type = tensor.get<Data>(tensor_type);
  return type == Data::bf16 || type == Data::fp16;
}

/// Bytes from the first element to the last.
int64_t bytes_of(const Descriptor& tensor) {
  int64_t last = 0;
  for (size_t axis = 0; axis < 4; ++axis) {
    last += (tensor.extent(axis) - 1) * tensor.stride(axis);
  }
  return (last + 1) * (is_half(tensor) ? 2 : 4);
}

using EngineNotes = std::vector<Note>;

/// Attention: the first engine, whose bits vary between runs, supports graphs that vary anyway; the
/// second supports all others. Convolutions must not run on an engine before kTensorCores.
constexpr size_t kTensorCores = 5;
const std::vector<EngineNotes>& engines_of(const Descriptor& graph) {
  static const std::vector<EngineNotes> of_attention{{Note::nondeterministic}, {}};
  static const std::vector<EngineNotes> of_convolutions{
      {Note::nondeterministic},
      {Note::tensor_core, Note::down_convert_inputs},
      {Note::fft},
      {Note::reduced_precision_reduction},
      {Note::winograd_4x4},
      {Note::tensor_core},
      {}};
  return convolution_in(graph) != nullptr ? of_convolutions : of_attention;
}

/// As cuDNN 9.19 and 9.26: in 16 bits the gradient of a weight is fp32 only as the result of
/// another operation, and only for channels that are multiples of 8.
bool has_plan(const Descriptor& graph) {
  if (width_of(graph) == cudnn_host().refused_width) {
    return false;
  }
  const Descriptor* convolution = convolution_in(graph);
  if (convolution == nullptr) {
    return true;
  }
  const auto& [x, w, y] = convolution_operands(*convolution);
  if (convolution->kind == Kind::operation_convolution_weight && is_half(x)) {
    return w.flag(tensor_virtual) && x.extent(1) % 8 == 0 && y.extent(1) % 8 == 0;
  }
  const bool adds = graph.values.at(graph_operations).count > 1;
  return !adds || !cudnn_host().refuses_bias;
}

/// The number of an engine, or of that of a configuration.
size_t engine_of(const Descriptor& of) {
  return std::to_integer<size_t>(of.values.at(engine_index).bytes.front());
}

Status get(Object object, Attribute what, Type, int64_t capacity, int64_t* count, void* to) {
  const Descriptor& of = *own(object);
  *count = 1;
  if (what == heuristics_results) {
    const auto graph = of.values.at(heuristics_graph).objects.front();
    *count = has_plan(*graph) ? std::ssize(engines_of(*graph)) : 0;
    for (int64_t i = 0; i < std::min(capacity, *count); ++i) {
      Descriptor& config = *own(static_cast<Object*>(to)[i]);
      config.values[heuristics_graph].objects = {graph};
      config.values[engine_index].bytes.assign(8, std::byte(i));
      config.finished = true;
    }
  } else if (what == engine_config_engine) {
    Descriptor& engine = *own(*static_cast<Object*>(to));
    engine.values[engine_index] = of.values.at(engine_index);
    engine.values[heuristics_graph] = of.values.at(heuristics_graph);
    engine.finished = true;
  } else if (what == engine_index) {
    *static_cast<int64_t*>(to) = static_cast<int64_t>(engine_of(of));
  } else if (what == engine_numerical_notes) {
    const auto& notes = engines_of(of.object(heuristics_graph))[engine_of(of)];
    *count = std::ssize(notes);
    std::copy_n(notes.begin(), std::min(capacity, *count), static_cast<Note*>(to));
  } else if (what == plan_workspace) {
    *static_cast<int64_t*>(to) =
        workspace_of(*of.object(plan_engine_config).values.at(heuristics_graph).objects.front());
  } else {
    return refuse(kBadParameter, "no attribute is requested");
  }
  return kSuccess;
}

Status execute(Handle handle, Object plan_object, Object pack_object) {
  const Descriptor& plan = *own(plan_object);
  const Descriptor& pack = *own(pack_object);
  const Descriptor& config = plan.object(plan_engine_config);
  const auto graph = config.values.at(heuristics_graph).objects.front();
  const auto tensors = tensors_in_memory(*graph);
  Places places;
  std::map<int64_t, float> numbers;
  for (int64_t i = 0; i < pack.values.at(variant_pack_ids).count; ++i) {
    const auto id = pack.get<int64_t>(variant_pack_ids, static_cast<size_t>(i));
    auto* data = pack.get<void*>(variant_pack_pointers, static_cast<size_t>(i));
    if (!tensors.contains(id) || data == nullptr) {
      return refuse(kBadParameter, fmt::format("tensor {} is none of the graph", id));
    }
    if (tensors.at(id)->flag(tensor_by_value)) {
      numbers[id] = *static_cast<float*>(data);
    } else if (reinterpret_cast<uintptr_t>(data) % 16 == 0) {
      places[id] = data;
    }
  }
  auto* const workspace = pack.get<void*>(variant_pack_workspace);
  if (places.size() + numbers.size() != tensors.size() || workspace == nullptr) {
    return refuse(kBadParameter, "a tensor is missing or not aligned, or there is no workspace");
  }
  for (const auto& [id, data] : places) {
    const auto* const begin = static_cast<const std::byte*>(data);
    const auto* const own = static_cast<const std::byte*>(workspace);
    if (begin < own + workspace_of(*graph) && own < begin + bytes_of(*tensors.at(id))) {
      return refuse(kBadParameter, fmt::format("tensor {} is in the workspace", id));
    }
  }
  const bool sums = has_sum_of_dq(*graph);
  const size_t engine = engine_of(config);
  const bool convolves = convolution_in(*graph) != nullptr;
  if (convolves ? engine < kTensorCores : sums != (engine == 0)) {
    return refuse(kNotSupported, "a graph for another engine");
  }
  const bool tf32 = convolves && engine == kTensorCores && !is_half(*tensors.at(1));
  if (width_of(*graph) == cudnn_host().broken_width) {
    return refuse(kNotSupported, "a width that is broken");
  }
  ++cudnn_host().runs;
  cudnn_host().sums_of_dq += sums ? 1 : 0;
  cudnn_host().tf32_runs += tf32 ? 1 : 0;
  static_cast<Context*>(handle)->queue->enqueue(
      [graph, places, numbers, workspace, tf32, bytes = workspace_of(*graph)] {
        std::memset(workspace, 0xff,
                    static_cast<size_t>(bytes));  // NaN: the library may overwrite its workspace
        evaluate(*graph, places, numbers, tf32);
      });
  return kSuccess;
}

const kernels::cudnn::Functions kFunctions{
    .GetVersion = [] { return cudnn_host().version; },
    .GetErrorString =
        [](Status status) { return status == kBadParameter ? "bad parameter" : "not supported"; },
    .GetLastErrorString = [](char* text, size_t size) { text[reason.copy(text, size - 1)] = '\0'; },
    .Create =
        [](Handle* made) {
          *made = new Context;
          return kSuccess;
        },
    .Destroy =
        [](Handle handle) {
          delete static_cast<Context*>(handle);
          return kSuccess;
        },
    .SetStream =
        [](Handle handle, kernels::cudnn::Stream stream) {
          static_cast<Context*>(handle)->queue = static_cast<Queue*>(stream);
          return kSuccess;
        },
    .BackendCreateDescriptor = create,
    .BackendDestroyDescriptor = destroy,
    .BackendFinalize = finish,
    .BackendSetAttribute = set,
    .BackendGetAttribute = get,
    .BackendExecute = execute};

}  // namespace
}  // namespace cudnn
}  // namespace espalier::simt

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// One per thread, for all queues: its contents do not depend on a queue.
std::unique_ptr<Cudnn>& of_thread() {
  thread_local std::unique_ptr<Cudnn> made;
  return made;
}

}  // namespace

const cudnn::Functions* cudnn_functions() {
  return simt::cudnn_host().version == 0 ? nullptr : &simt::cudnn::kFunctions;
}

std::string cudnn_state() { return simt::cudnn_host().version == 0 ? "there is none" : "host"; }

Cudnn& cudnn_of(Stream& stream) {
  std::unique_ptr<Cudnn>& made = of_thread();
  if (made == nullptr) {
    made = std::make_unique<Cudnn>();
  }
  static_cast<void>(cudnn_functions()->SetStream(made->handle(), &queue_of(stream)));
  return *made;
}

bool keep_for_recording(Stream&, const std::shared_ptr<const CudnnPlan>&) { return false; }

}  // namespace espalier::kernels::ESPALIER_GPU

namespace espalier::simt {

void restart_cudnn_host() {
  cudnn_host() = {};
  kernels::ESPALIER_GPU::of_thread().reset();
}

}  // namespace espalier::simt
