#include "src/kernels/cuda/cudnn/graph.h"

#include <algorithm>
#include <utility>

#include "src/core/error.h"
#include "src/kernels/cuda/cudnn/library.h"

namespace espalier::kernels::ESPALIER_GPU {

using cudnn::Attribute;
using cudnn::Data;
using cudnn::Kind;
using cudnn::Type;

namespace {

/// cuDNN's text of its last error, in one line.
std::string last_reason() {
  std::array<char, 512> text{};
  cudnn_functions()->GetLastErrorString(text.data(), text.size() - 1);
  std::string reason = text.data();
  std::ranges::replace(reason, '\n', ' ');
  return reason;
}

constexpr int64_t kAlignment = 16;  ///< bytes

}  // namespace

void check_cudnn(cudnn::Status status, const char* what, int number) {
  if (status != cudnn::Status::success) {
    fail("cuDNN, {} {}: {} ({})", what, number, cudnn_functions()->GetErrorString(status),
         last_reason());
  }
}

CudnnObject::CudnnObject(Kind kind) : kind_(kind) {
  check_cudnn(cudnn_functions()->BackendCreateDescriptor(kind, &native_), "descriptor",
              static_cast<int>(kind));
}

CudnnObject::~CudnnObject() {
  if (native_ != nullptr) {
    static_cast<void>(cudnn_functions()->BackendDestroyDescriptor(native_));
  }
}

CudnnObject::CudnnObject(CudnnObject&& other) noexcept
    : kind_(other.kind_), native_(std::exchange(other.native_, nullptr)) {}

void CudnnObject::set(Attribute what, Type type, int64_t count, const void* values) {
  check_cudnn(cudnn_functions()->BackendSetAttribute(native_, what, type, count, values),
              "attribute", static_cast<int>(what));
}

void CudnnObject::finish() {
  check_cudnn(cudnn_functions()->BackendFinalize(native_), "end of descriptor",
              static_cast<int>(kind_));
}

int64_t CudnnObject::get(Attribute what, Type type, int64_t capacity, void* to) const {
  int64_t count = 0;
  check_cudnn(cudnn_functions()->BackendGetAttribute(native_, what, type, capacity, &count, to),
              "reading of attribute", static_cast<int>(what));
  return count;
}

namespace {

CudnnObject make_tensor(int64_t id, Data type, const CudnnShape& shape) {
  CudnnObject made(Kind::tensor);
  made.set(Attribute::tensor_id, id);
  made.set(Attribute::tensor_type, type);
  made.set(Attribute::tensor_dimensions, shape.extents);
  made.set(Attribute::tensor_strides, shape.strides);
  made.set(Attribute::tensor_alignment, kAlignment);
  return made;
}

}  // namespace

void CudnnGraph::add(int64_t id, Data type, CudnnObject tensor) {
  tensor.finish();
  tensors_.push_back({id, type, std::move(tensor)});
}

void CudnnGraph::tensor(int64_t id, Data type, const CudnnShape& shape) {
  require(id > 0 && id < kFirstBetween, "tensors in memory have small numbers", id);
  add(id, type, make_tensor(id, type, shape));
}

void CudnnGraph::number(int64_t id) {
  require(id > 0 && id < kFirstBetween, "tensors in memory have small numbers", id);
  CudnnObject made = make_tensor(id, Data::fp32, {{1, 1, 1, 1}, {1, 1, 1, 1}});
  made.set(Attribute::tensor_by_value, true);
  add(id, Data::fp32, std::move(made));
}

int64_t CudnnGraph::between(Data type, const CudnnShape& shape) {
  CudnnObject made = make_tensor(next_, type, shape);
  made.set(Attribute::tensor_virtual, true);
  add(next_, type, std::move(made));
  return next_++;
}

const CudnnGraph::Named& CudnnGraph::at(int64_t id) const {
  const auto found = std::ranges::find(tensors_, id, &Named::id);
  require(found != tensors_.end(), "a tensor of the graph", id);
  return *found;
}

int64_t CudnnGraph::matmul(int64_t a, int64_t b, int64_t y) {
  CudnnObject& mode = modes_.emplace_back(Kind::matmul);
  mode.set(Attribute::matmul_precision, Data::fp32);
  mode.finish();
  CudnnObject& made = operations_.emplace_back(Kind::operation_matmul);
  made.set(Attribute::operation_matmul_a, at(a).object);
  made.set(Attribute::operation_matmul_b, at(b).object);
  made.set(Attribute::operation_matmul_c, at(y).object);
  made.set(Attribute::operation_matmul_mode, mode);
  made.finish();
  return y;
}

namespace {

/// Attributes of a convolution's operation.
struct ConvolutionNames {
  Kind kind;
  Attribute alpha, beta, mode, x, w, y;
};

ConvolutionNames names_of(ConvolutionPart part) {
  using enum Attribute;
  switch (part) {
    case ConvolutionPart::input:
      return {Kind::operation_convolution_input, operation_convolution_input_alpha,
              operation_convolution_input_beta,  operation_convolution_input_mode,
              operation_convolution_input_dx,    operation_convolution_input_w,
              operation_convolution_input_dy};
    case ConvolutionPart::weight:
      return {Kind::operation_convolution_weight, operation_convolution_weight_alpha,
              operation_convolution_weight_beta,  operation_convolution_weight_mode,
              operation_convolution_weight_x,     operation_convolution_weight_dw,
              operation_convolution_weight_dy};
    case ConvolutionPart::forward:
      break;
  }
  return {Kind::operation_convolution_forward, operation_convolution_forward_alpha,
          operation_convolution_forward_beta,  operation_convolution_forward_mode,
          operation_convolution_forward_x,     operation_convolution_forward_w,
          operation_convolution_forward_y};
}

}  // namespace

int64_t CudnnGraph::convolve(ConvolutionPart part, int64_t x, int64_t w, int64_t y, int64_t stride,
                             int64_t padding) {
  const auto both = [](int64_t n) { return std::array<int64_t, 2>{n, n}; };
  CudnnObject& mode = modes_.emplace_back(Kind::convolution);
  mode.set(Attribute::convolution_precision, Data::fp32);
  mode.set(Attribute::convolution_mode, cudnn::ConvolutionMode::cross_correlation);
  mode.set(Attribute::convolution_axes, int64_t{2});
  mode.set(Attribute::convolution_dilations, both(1));
  mode.set(Attribute::convolution_strides, both(stride));
  mode.set(Attribute::convolution_paddings_before, both(padding));
  mode.set(Attribute::convolution_paddings_after, both(padding));
  mode.finish();
  const ConvolutionNames names = names_of(part);
  CudnnObject& made = operations_.emplace_back(names.kind);
  made.set(names.alpha, 1.0F);
  made.set(names.beta, 0.0F);
  made.set(names.mode, mode);
  made.set(names.x, at(x).object);
  made.set(names.w, at(w).object);
  made.set(names.y, at(y).object);
  made.finish();
  return part == ConvolutionPart::forward ? y : part == ConvolutionPart::input ? x : w;
}

int64_t CudnnGraph::reduce(cudnn::Reduction how, int64_t x, int64_t y) {
  CudnnObject& mode = modes_.emplace_back(Kind::reduction);
  mode.set(Attribute::reduction_operator, how);
  mode.set(Attribute::reduction_precision, Data::fp32);
  mode.finish();
  CudnnObject& made = operations_.emplace_back(Kind::operation_reduction);
  made.set(Attribute::operation_reduction_x, at(x).object);
  made.set(Attribute::operation_reduction_y, at(y).object);
  made.set(Attribute::operation_reduction_mode, mode);
  made.finish();
  return y;
}

int64_t CudnnGraph::reshape(int64_t x, int64_t y) {
  CudnnObject& made = operations_.emplace_back(Kind::operation_reshape);
  made.set(Attribute::operation_reshape_x, at(x).object);
  made.set(Attribute::operation_reshape_y, at(y).object);
  made.finish();
  return y;
}

int64_t CudnnGraph::select(int64_t x, int64_t b, int64_t t, int64_t y) {
  return add_pointwise(cudnn::Pointwise::select, {.x = x, .b = b, .t = t}, y);
}

int64_t CudnnGraph::index(int64_t x, int64_t axis, int64_t y) {
  return add_pointwise(cudnn::Pointwise::index, {.x = x}, y, axis);
}

int64_t CudnnGraph::add_pointwise(cudnn::Pointwise how, const Inputs& inputs, int64_t y,
                                  int64_t axis) {
  CudnnObject& mode = modes_.emplace_back(Kind::pointwise);
  mode.set(Attribute::pointwise_mode, how);
  const bool compares = at(y).type == Data::boolean;
  mode.set(Attribute::pointwise_precision, compares ? Data::boolean : Data::fp32);
  if (axis >= 0) {
    mode.set(Attribute::pointwise_axis, axis);
  }
  mode.finish();
  CudnnObject& made = operations_.emplace_back(Kind::operation_pointwise);
  made.set(Attribute::operation_pointwise_mode, mode);
  made.set(Attribute::operation_pointwise_x, at(inputs.x).object);
  if (inputs.b != 0) {
    made.set(Attribute::operation_pointwise_b, at(inputs.b).object);
  }
  if (inputs.t != 0) {
    made.set(Attribute::operation_pointwise_t, at(inputs.t).object);
  }
  made.set(Attribute::operation_pointwise_y, at(y).object);
  made.finish();
  return y;
}

CudnnObject CudnnGraph::finish(const CudnnTarget& target) const {
  std::vector<cudnn::Object> all;
  for (const CudnnObject& operation : operations_) {
    all.push_back(operation.native());
  }
  CudnnObject made(Kind::graph);
  made.set(Attribute::graph_operations, Type::object, std::ssize(all), all.data());
  if (target.handle != nullptr) {
    made.set(Attribute::graph_handle, Type::handle, 1, &target.handle);
  }
  made.finish();
  return made;
}

namespace {

/// Engine configurations, in cuDNN's order of expected speed.
std::vector<CudnnObject> find_engines(const CudnnObject& graph, const CudnnTarget& target) {
  CudnnObject search(Kind::heuristics);
  search.set(Attribute::heuristics_graph, graph);
  search.set(Attribute::heuristics_mode, cudnn::Heuristics::likely_fastest);
  if (target.device != nullptr) {
    search.set(Attribute::heuristics_device, *target.device);
  }
  search.finish();
  const int64_t found = search.get(Attribute::heuristics_results, Type::object, 0, nullptr);
  std::vector<CudnnObject> configs;
  std::vector<cudnn::Object> natives;
  for (int64_t i = 0; i < found; ++i) {
    natives.push_back(configs.emplace_back(Kind::engine_config).native());
  }
  const int64_t got =
      search.get(Attribute::heuristics_results, Type::object, found, natives.data());
  while (std::ssize(configs) > got) {
    configs.pop_back();
  }
  return configs;
}

int64_t number_of(const CudnnObject& engine) {
  int64_t number = 0;
  static_cast<void>(engine.get(Attribute::engine_index, Type::int64, 1, &number));
  return number;
}

const char* text(cudnn::Note note) {
  switch (note) {
    case cudnn::Note::nondeterministic:
      return "gives other bits in each run";
    case cudnn::Note::tensor_core:
      return "rounds operands to TF32";
    case cudnn::Note::down_convert_inputs:
      return "rounds operands";
    case cudnn::Note::reduced_precision_reduction:
      return "rounds partial sums";
    default:
      return "transforms operands (FFT, Winograd)";
  }
}

/// Throws Failure if the engine has a note of `excluded`.
void check_notes(const CudnnObject& engine, int64_t number, std::span<const cudnn::Note> excluded) {
  std::array<cudnn::Note, cudnn::kNotes> notes{};
  const int64_t count = engine.get(Attribute::engine_numerical_notes, Type::numerical_note,
                                   cudnn::kNotes, notes.data());
  const auto last = notes.begin() + std::min<int64_t>(count, cudnn::kNotes);
  const auto found = std::find_first_of(notes.begin(), last, excluded.begin(), excluded.end());
  check(found == last, "engine {} {}", number, found == last ? "" : text(*found));
}

/// Throws Failure if the limits exclude this engine.
CudnnPlan make_plan(CudnnObject config, const CudnnTarget& target, const CudnnLimits& limits) {
  CudnnObject engine(Kind::engine);
  cudnn::Object native = engine.native();
  static_cast<void>(config.get(Attribute::engine_config_engine, Type::object, 1, &native));
  const int64_t number = number_of(engine);
  check_notes(engine, number, limits.excluded);
  CudnnObject plan(Kind::plan);
  if (target.handle != nullptr) {
    plan.set(Attribute::plan_handle, Type::handle, 1, &target.handle);
  } else {
    plan.set(Attribute::plan_device, *target.device);
  }
  plan.set(Attribute::plan_engine_config, config);
  plan.finish();
  int64_t bytes = 0;
  static_cast<void>(plan.get(Attribute::plan_workspace, Type::int64, 1, &bytes));
  check(static_cast<size_t>(bytes) <= limits.workspace,
        "engine {} needs a workspace of {} bytes, not of {}", number, bytes, limits.workspace);
  return {std::move(config), std::move(plan), number, static_cast<size_t>(bytes)};
}

}  // namespace

CudnnPlan plan_graph(const CudnnObject& graph, const CudnnTarget& target,
                     const CudnnLimits& limits) {
  std::string reasons;
  for (CudnnObject& config : find_engines(graph, target)) {
    try {
      return make_plan(std::move(config), target, limits);
    } catch (const Failure& failure) {
      const std::string reason = failure.what();
      if (reasons.find(reason) == std::string::npos) {  // an engine may have several configurations
        reasons += (reasons.empty() ? "" : "; ") + reason;
      }
    }
  }
  fail("cuDNN has no plan for this graph ({})", reasons.empty() ? last_reason() : reasons);
}

void run_plan(cudnn::Handle handle, const CudnnPlan& plan, std::span<const CudnnPlace> places,
              void* workspace) {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const CudnnPlace& place : places) {
    ids.push_back(place.id);
    pointers.push_back(place.data);
  }
  CudnnObject pack(Kind::variant_pack);
  pack.set(Attribute::variant_pack_ids, ids);
  pack.set(Attribute::variant_pack_pointers, Type::pointer, std::ssize(pointers), pointers.data());
  pack.set(Attribute::variant_pack_workspace, Type::pointer, 1, &workspace);
  pack.finish();
  check_cudnn(cudnn_functions()->BackendExecute(handle, plan.object.native(), pack.native()),
              "run of engine", static_cast<int>(plan.engine));
}

}  // namespace espalier::kernels::ESPALIER_GPU
