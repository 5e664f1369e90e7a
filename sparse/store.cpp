#include "sparse/store.h"

#include <xxhash.h>

#include <algorithm>

#include "src/core/rng.h"

namespace espalier::sparse {
namespace {

int64_t aligned(int64_t count) {
  return (count + Store::kAlign - 1) / Store::kAlign * Store::kAlign;
}

/// Copies what both indices keep; `to` is zero elsewhere already.
void move_survivors(const Index& before, const Index& now, const float* from, float* to) {
  const std::vector<int32_t> old_positions = before.positions();
  const std::vector<int32_t> positions = now.positions();
  size_t old = 0;
  for (size_t k = 0; k < positions.size(); ++k) {
    while (old < old_positions.size() && old_positions[old] < positions[k]) {
      ++old;
    }
    if (old < old_positions.size() && old_positions[old] == positions[k]) {
      to[k] = from[old];
    }
  }
}

}  // namespace

Store::Store(Stream& stream, const kernels::Kernels& kernels, std::vector<ParameterSpec> specs,
             const StoreOptions& options)
    : stream_(stream), kernels_(kernels), options_(options) {
  parameters_.reserve(specs.size());
  for (ParameterSpec& spec : specs) {
    Parameter parameter;
    parameter.index = Index::full(spec.shape.count());
    parameter.spec = std::move(spec);
    parameters_.push_back(std::move(parameter));
  }
  allocate_all();
}

void Store::allocate_all() {
  lay_out();
  if (options_.training) {
    gradient_ = allocate_flat(Memory::gradient, "gradient");
    master_ = allocate_flat(Memory::master, "master");
    for (int which = 0; which < options_.moments; ++which) {
      moments_.push_back(allocate_flat(Memory::moment, which == 0 ? "moment1" : "moment2"));
    }
  }
  for (Parameter& parameter : parameters_) {
    allocate_dense(parameter);
  }
}

/// Backward order: the last parameter of the forward pass comes first.
void Store::lay_out() {
  flat_size_ = 0;
  for (auto parameter = parameters_.rbegin(); parameter != parameters_.rend(); ++parameter) {
    parameter->offset = flat_size_;
    flat_size_ += aligned(parameter->kept());
  }
}

Buffer Store::allocate_flat(Memory kind, std::string_view name) {
  return arena().allocate(kind, name, DType::fp32, Shape{flat_size_});
}

/// In fp32 with a full mask the dense copy would repeat the master copy: share it.
void Store::allocate_dense(Parameter& parameter) {
  const DType dtype = parameter.spec.shape.rank() == 1 ? DType::fp32 : options_.dtype;
  const bool shared =
      options_.training && dtype == DType::fp32 && parameter.index.encoding() == Encoding::full;
  if (shared) {
    parameter.memory.release();
    parameter.dense = part(master(), parameter).reshaped(parameter.spec.shape);
  } else if (!parameter.memory.tensor()) {
    parameter.memory =
        arena().allocate(Memory::weight, parameter.spec.name, dtype, parameter.spec.shape);
    parameter.dense = parameter.memory.tensor();
  }
}

Parameter& Store::find(std::string_view name) {
  const auto found = std::ranges::find(parameters_, name, [](const Parameter& parameter) {
    return std::string_view(parameter.spec.name);
  });
  require(found != parameters_.end(), "the store has this parameter", name);
  return *found;
}

int64_t Store::total_size() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) {
    sum += parameter.size();
  }
  return sum;
}

int64_t Store::total_kept() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) {
    sum += parameter.kept();
  }
  return sum;
}

Tensor Store::part(const Tensor& flat, const Parameter& parameter) const {
  return Tensor(flat.get<float>() + parameter.offset, DType::fp32, Shape{parameter.kept()});
}

Tensor Store::full_gradient(const Parameter& parameter) const {
  require(parameter.index.encoding() == Encoding::full, "the parameter is not pruned",
          parameter.spec.name);
  return part(gradient(), parameter).reshaped(parameter.spec.shape);
}

kernels::Positions Store::positions(const Parameter& parameter) {
  const auto bytes = static_cast<int64_t>(parameter.index.scratch_bytes());
  if (bytes == 0) {
    return parameter.index.view();
  }
  if (!decoded_.tensor() || decoded_.tensor().count() < bytes) {
    decoded_.release();
    decoded_ = arena().allocate(Memory::scratch, "decoded index", DType::uint8, Shape{bytes});
  }
  return parameter.index.view(decoded_.tensor().span<uint8_t>(), stream_.threads());
}

Tensor Store::dense_gradient(const Parameter& parameter) {
  if (!dense_gradient_.tensor() || dense_gradient_.tensor().count() < parameter.size()) {
    dense_gradient_.release();
    dense_gradient_ = arena().allocate(Memory::scratch, "dense gradient of one layer", DType::fp32,
                                       Shape{parameter.size()});
  }
  return Tensor(dense_gradient_.tensor().data, DType::fp32, parameter.spec.shape);
}

void Store::initialise(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    const ParameterSpec& spec = parameter.spec;
    std::vector<float> values(static_cast<size_t>(parameter.size()),
                              spec.initial == Initial::ones ? 1.0F : 0.0F);
    if (spec.initial == Initial::normal) {
      const uint64_t key = mix(seed, XXH64(spec.name.data(), spec.name.size(), 0));
      for (size_t i = 0; i < values.size(); i += 4) {
        const Philox bits = philox(key, 0, i / 4);
        const auto first = normal_pair(bits[0], bits[1]);
        const auto second = normal_pair(bits[2], bits[3]);
        const std::array<float, 4> draws{first[0], first[1], second[0], second[1]};
        for (size_t j = 0; j < 4 && i + j < values.size(); ++j) {
          values[i + j] = spec.deviation * draws[j];
        }
      }
    }
    set_values(parameter, values);
  }
}

void Store::set_values(Parameter& parameter, std::span<const float> packed) {
  require(static_cast<int64_t>(packed.size()) == parameter.kept(), "one value a kept element",
          packed.size(), parameter.kept(), parameter.spec.name);
  if (options_.training) {
    std::ranges::copy(packed, part(master(), parameter).get<float>());
    refresh(parameter);
    return;
  }
  // The kernel reads only; a view has no const form.
  Tensor source(const_cast<float*>(packed.data()), DType::fp32, Shape{parameter.kept()});
  kernels_.scatter(stream_,
                   {.packed = source, .dense = parameter.dense, .positions = positions(parameter)});
}

std::vector<float> Store::values(const Parameter& parameter) {
  std::vector<float> packed(static_cast<size_t>(parameter.kept()));
  if (options_.training) {
    const float* from = part(master(), parameter).get<float>();
    std::copy(from, from + parameter.kept(), packed.begin());
  } else {
    kernels_.gather(stream_, {.dense = parameter.dense,
                              .packed = Tensor(packed.data(), DType::fp32, Shape{parameter.kept()}),
                              .positions = positions(parameter)});
  }
  return packed;
}

void Store::refresh(Parameter& parameter) {
  if (parameter.memory.tensor()) {
    kernels_.scatter(stream_, {.packed = part(master(), parameter),
                               .dense = parameter.dense,
                               .positions = positions(parameter)});
  }
}

Encoding Store::choose_encoding(const Parameter& parameter, int64_t kept) const {
  return options_.encoding ? options_.encoding(parameter.spec.name, parameter.size(), kept)
                           : best_encoding(parameter.size(), kept);
}

void Store::set_masks(std::span<const Mask> masks) {
  require(masks.size() == parameters_.size(), "one mask a parameter", masks.size(),
          parameters_.size());
  std::vector<Before> before;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    require(masks[p].size() == parameter.size(), "a mask covers its parameter", masks[p].size(),
            parameter.size(), parameter.spec.name);
    std::vector<float> packed = options_.training ? std::vector<float>() : values(parameter);
    before.push_back({std::move(parameter.index), parameter.offset, std::move(packed)});
    parameter.index = Index(arena(), masks[p], choose_encoding(parameter, masks[p].kept()));
  }
  lay_out();
  if (options_.training) {
    gradient_.release();
    carry(before, master_, Memory::master, "master");
    for (size_t which = 0; which < moments_.size(); ++which) {
      carry(before, moments_[which], Memory::moment, which == 0 ? "moment1" : "moment2");
    }
    gradient_ = allocate_flat(Memory::gradient, "gradient");
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    allocate_dense(parameters_[p]);
    if (options_.training) {
      refresh(parameters_[p]);
    } else {
      std::vector<float> packed(static_cast<size_t>(parameters_[p].kept()));
      move_survivors(before[p].index, parameters_[p].index, before[p].values.data(), packed.data());
      set_values(parameters_[p], packed);
    }
  }
}

void Store::plan(std::span<const int64_t> kept) {
  require(arena().dry(), "only a dry store is planned");
  require(kept.size() == parameters_.size(), "one count a parameter", kept.size(),
          parameters_.size());
  gradient_.release();
  master_.release();
  moments_.clear();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    parameter.index =
        Index::planned(arena(), parameter.size(), kept[p], choose_encoding(parameter, kept[p]));
  }
  allocate_all();
}

/// Replaces a flat array by one in the present layout; elements that were not kept start at zero.
void Store::carry(std::span<const Before> before, Buffer& flat, Memory kind,
                  std::string_view name) {
  Buffer moved = allocate_flat(kind, name);
  for (size_t p = 0; p < parameters_.size() && !arena().dry(); ++p) {
    move_survivors(before[p].index, parameters_[p].index,
                   flat.tensor().get<float>() + before[p].offset,
                   moved.tensor().get<float>() + parameters_[p].offset);
  }
  flat = std::move(moved);
}

std::vector<Mask> Store::masks() const {
  std::vector<Mask> all;
  all.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) {
    all.push_back(parameter.index.mask());
  }
  return all;
}

}  // namespace espalier::sparse
