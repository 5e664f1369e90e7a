#include "sparse/store/store.h"

#include <algorithm>
#include <utility>

namespace espalier::sparse {
namespace {

int64_t aligned(int64_t count) {
  return (count + Store::kAlign - 1) / Store::kAlign * Store::kAlign;
}

bool is_vector(const Parameter& parameter) { return parameter.spec.shape.rank() == 1; }

}  // namespace

Store::Store(Stream& stream, const kernels::Kernels& kernels, std::vector<ParameterSpec> specs,
             const StoreOptions& options)
    : stream_(stream),
      kernels_(kernels),
      options_(options),
      panels_(stream),
      expander_(stream, options.dtype, [this](Stream& with, size_t number, const Tensor& to) {
        write_dense(with, parameters_[number], to);
      }) {
  require(options.planned.empty() || arena().dry(), "only a dry store is planned");
  require(options.gradient == DType::fp32 || options.gradient == options.dtype,
          "gradients are fp32 or of the compute type", name_of(options.gradient));
  parameters_.reserve(specs.size());
  for (ParameterSpec& spec : specs) {
    Parameter parameter;
    parameter.spec = std::move(spec);
    parameter.storage = choose_storage(parameter);
    if (!arena().dry()) {
      check_size(parameter.spec.name, parameter.size());
    }
    parameter.index = Index::full(parameter.size());
    if (options.start) {
      const Mask mask = options.start(parameters_.size());
      static_cast<Pattern&>(parameter) = make_pattern(parameter, {&mask, mask.kept()});
    } else if (!options.planned.empty()) {
      static_cast<Pattern&>(parameter) =
          make_pattern(parameter, {nullptr, options.planned.at(parameters_.size())});
    }
    parameters_.push_back(std::move(parameter));
  }
  options_.start = {};
  allocate_all();
}

void Store::allocate_all() {
  ++changes_;
  const std::vector<Extent> extents = lay_out();
  value_ = allocate_flat(Memory::weight, "value", options_.dtype);
  if (options_.training) {
    gradient_ = allocate_flat(Memory::gradient, "gradient", options_.gradient);
    if (options_.feedback) {
      feedback_ = allocate_feedback();
    }
    std::vector<int> pruning;
    for (const Parameter& parameter : parameters_) {
      pruning.push_back(pruning_arrays(parameter));
    }
    optimizer_ = OptimizerArrays(stream_, kernels_,
                                 {.copies = master_copies(),
                                  .moments = options_.moments,
                                  .state_bits = options_.state_bits,
                                  .pruning = std::move(pruning),
                                  .offload = options_.offload,
                                  .codecs_on_device = codecs_on_device_,
                                  .sharding = options_.sharding,
                                  .gradient = options_.gradient},
                                 extents);
  }
  for (Parameter& parameter : parameters_) {
    allocate_copy(parameter);
  }
}

std::vector<MasterCopy> Store::master_copies() const {
  std::vector<MasterCopy> copies;
  for (const Parameter& parameter : parameters_) {
    const bool separate = options_.sharding && options_.separate_master && !is_vector(parameter) &&
                          options_.separate_master(parameter.spec);
    const bool split =
        options_.dtype != DType::fp32 && (options_.master_copy || is_vector(parameter));
    copies.push_back(separate ? MasterCopy::separate
                     : split  ? MasterCopy::split
                              : MasterCopy::same_as_value);
  }
  return copies;
}

/// Backward order: the last parameter of the forward pass comes first.
std::vector<Extent> Store::lay_out() {
  flat_size_ = 0;
  for (auto parameter = parameters_.rbegin(); parameter != parameters_.rend(); ++parameter) {
    parameter->offset = flat_size_;
    flat_size_ += aligned(parameter->kept());
  }
  decoded_for_ = nullptr;
  std::vector<Extent> extents;
  for (const Parameter& parameter : parameters_) {
    extents.push_back({parameter.offset, parameter.kept()});
  }
  return extents;
}

Buffer Store::allocate_flat(Memory kind, std::string_view name, DType dtype) {
  return arena().allocate(kind, name, dtype, Shape{flat_size_});
}

Buffer Store::allocate_feedback() {
  Arena& where = codecs_on_device_ ? arena() : arena().host();
  return where.allocate(Memory::communication, "error feedback", DType::fp32, Shape{flat_size_});
}

void Store::move_codecs_to_device() {
  if (std::exchange(codecs_on_device_, true)) {
    return;
  }
  if (feedback()) {
    Buffer there = allocate_feedback();
    stream_.copy(feedback(), there.tensor());
    stream_.synchronize();
    feedback_ = std::move(there);
  }
  optimizer_.move_master_to_device();
}

/// Allocates what the storage of a parameter keeps resident beside the flat arrays.
void Store::allocate_copy(Parameter& parameter) {
  const DType dtype = is_vector(parameter) ? DType::fp32 : options_.dtype;
  if (parameter.full() && dtype == options_.dtype) {
    parameter.memory.release();
    parameter.dense = part(value(), parameter).reshaped(parameter.spec.shape);
  } else if (parameter.full() || parameter.storage.dense_copy) {
    if (!parameter.copied()) {
      parameter.memory =
          arena().allocate(Memory::weight, parameter.spec.name, dtype, parameter.spec.shape);
    }
    parameter.dense = parameter.memory.tensor();
  } else {
    parameter.memory.release();
    parameter.dense = {};
  }
}

size_t Store::number_of(const Parameter& parameter) const {
  return static_cast<size_t>(&parameter - parameters_.data());
}

Parameter& Store::find(std::string_view name) {
  const auto found = std::ranges::find(parameters_, name, [](const Parameter& parameter) {
    return std::string_view(parameter.spec.name);
  });
  require(found != parameters_.end(), "the store has this parameter", name);
  return *found;
}

Tensor Store::part(const Tensor& flat, const Parameter& parameter) const {
  return flat.elements(parameter.offset, parameter.kept());
}

Tensor Store::full_gradient(const Parameter& parameter) const {
  require(parameter.full(), "the parameter is not pruned", parameter.spec.name);
  return part(gradient(), parameter).reshaped(parameter.spec.shape);
}

OptimizerState Store::state(const Parameter& parameter) const {
  const size_t p = number_of(parameter);
  const Range owned = optimizer_.owned(p);
  auto owned_part = [&](const Tensor& flat) {
    return part(flat, parameter).elements(owned.first, owned.count);
  };
  return {.gradient = owned_part(gradient()),
          .value = optimizer_.has_separate_master(p) ? optimizer_.view(StatePart::master, p)
                                                     : owned_part(value()),
          .low = optimizer_.view(StatePart::low, p),
          .moment1 = optimizer_.view(StatePart::moment1, p),
          .moment2 = optimizer_.view(StatePart::moment2, p),
          .scale1 = optimizer_.scales(StatePart::moment1, p),
          .scale2 = optimizer_.scales(StatePart::moment2, p),
          .pruning1 = optimizer_.view(StatePart::pruning1, p),
          .pruning2 = optimizer_.view(StatePart::pruning2, p),
          .separate_master = optimizer_.has_separate_master(p),
          .first = owned.first};
}

std::span<const Range> Store::shares(const Parameter& parameter) const {
  return optimizer_.shares(number_of(parameter));
}

kernels::Positions Store::positions(const Parameter& parameter) {
  if (parameter.device_index) {
    return parameter.device_index.positions();
  }
  const auto bytes = static_cast<int64_t>(parameter.index.scratch_bytes());
  if (bytes == 0) {
    return parameter.index.view();
  }
  if (decoded_for_ != &parameter) {
    const Tensor decoded = scratch(decoded_, "decoded index", DType::uint8, Shape{bytes});
    decoded_positions_ = parameter.index.view(decoded.span<uint8_t>(), stream_.threads());
    decoded_for_ = &parameter;
  }
  return decoded_positions_;
}

/// Grows to the largest tensor requested.
Tensor Store::scratch(Buffer& buffer, std::string_view name, DType dtype, const Shape& shape) {
  if (!buffer.tensor() || buffer.tensor().count() < shape.count()) {
    ++changes_;
    buffer.release();
    buffer = arena().allocate(Memory::scratch, name, dtype, Shape{shape.count()});
  }
  return buffer.tensor().as(dtype, shape);
}

Tensor Store::expand(const Parameter& parameter) {
  return expander_.take({.number = number_of(parameter), .shape = parameter.spec.shape});
}

/// Kept values into a dense matrix, on a stream.
void Store::write_dense(Stream& stream, const Parameter& parameter, const Tensor& to) {
  kernels_.scatter(
      stream, {.packed = part(value(), parameter), .dense = to, .positions = positions(parameter)});
}

Store::Pass::~Pass() {
  try {
    store_.expander_.end_pass();
  } catch (const Error&) {  // of the device: the next synchronisation throws it again
  }
  try {
    store_.panels_.end_pass();
  } catch (const Error&) {
  }
}

void Store::set_gradient_probe(GradientProbe probe, Probed probed) {
  ++changes_;
  gradient_probe_ = std::move(probe);
  probed_ = probed;
  if (!gradient_probe_) {
    panels_.release();  // sparse storages need them for probes only
  }
}

Storage Store::choose_storage(const Parameter& parameter) const {
  return options_.storage && !parameter.spec.lookup && !is_vector(parameter)
             ? options_.storage(parameter.spec.name)
             : Storage::dense;
}

void Store::set_storage(Parameter& parameter, const Storage& storage) {
  BlockList blocks;
  if (storage.whole_blocks && !parameter.full()) {
    const Mask mask = parameter.index.dry() ? Mask() : parameter.index.mask();
    blocks = make_blocks(parameter, {parameter.index.dry() ? nullptr : &mask, parameter.kept()});
  }
  ++changes_;
  parameter.storage = storage;
  parameter.blocks = std::move(blocks);
  parameter.csr = {};
  parameter.csr = csr_list(parameter, parameter);
  parameter.tiles = kept_tiles(parameter, parameter);
  allocate_copy(parameter);
  refresh(parameter);
}

int64_t Store::total_size() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) {
    sum += parameter.spec.counts() ? parameter.size() : 0;
  }
  return sum;
}

int64_t Store::total_kept() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) {
    sum += parameter.spec.counts() ? parameter.kept() : 0;
  }
  return sum;
}

int64_t Store::largest_kept() const {
  int64_t largest = 0;
  for (const Parameter& parameter : parameters_) {
    largest = std::max(largest, parameter.kept());
  }
  return largest;
}

Buffer Store::plan_moment_copy() const {
  if (!arena().on_device() || options_.state_bits != 8) {
    return {};
  }
  return arena().allocate(Memory::scratch, "moments", DType::fp32,
                          Shape{std::min(largest_kept(), OptimizerArrays::kPiece)});
}

StateParts Store::parts() const {
  StateParts parts{
      .value = value_.bytes(),
      .gradient = gradient_.bytes(),
      .low = optimizer_.bytes(StatePart::low),
      .master = optimizer_.bytes(StatePart::master),
      .moments = optimizer_.bytes(StatePart::moment1) + optimizer_.bytes(StatePart::moment2),
      .scales = optimizer_.scale_bytes(),
      .pruning = optimizer_.bytes(StatePart::pruning1) + optimizer_.bytes(StatePart::pruning2)};
  for (const Parameter& parameter : parameters_) {
    parts.copies += parameter.memory.bytes();
    parts.index +=
        parameter.blocks.bytes() + parameter.csr.bytes() +
        (parameter.tiles ? parameter.tiles->bytes() : 0) +
        (parameter.device_index ? parameter.device_index.bytes() : parameter.index.bytes());
  }
  return parts;
}

}  // namespace espalier::sparse
