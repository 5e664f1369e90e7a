// The numbers that a store holds: initial values, values and state in and out, and the copies that
// compute reads when other ranks have stepped a part of the values (ZeRO-1).
#include <xxhash.h>

#include <algorithm>

#include "sparse/store/store.h"
#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/kernels/rules/master.h"

namespace espalier::sparse {
namespace {

/// body(the elements), bf16 or fp16.
template <class Body>
void with_halves(const Tensor& values, const Body& body) {
  if (values.dtype == DType::bf16) {
    body(values.get<bf16>());
  } else {
    body(values.get<fp16>());
  }
}

/// values[k] = the draw of kept element first + k: a pure function of (key, its position).
void draw_run(const Index& index, uint64_t key, float deviation, int64_t first,
              std::span<float> values) {
  std::vector<int32_t> positions(values.size());
  index.decode(first, positions);
  normals_at(key, positions, values);
  for (float& value : values) {
    value *= deviation;
  }
}

void draw_normal(const Index& index, uint64_t key, float deviation, std::span<float> values,
                 int threads) {
  constexpr int64_t kRun = 1 << 16;
  const auto count = static_cast<int64_t>(values.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && count > kRun)
  for (int64_t first = 0; first < count; first += kRun) {
    const auto length = static_cast<size_t>(std::min(kRun, count - first));
    draw_run(index, key, deviation, first, values.subspan(static_cast<size_t>(first), length));
  }
}

/// For each rank the elements that it owns of some parameters.
std::vector<Range> packed_by_rank(std::span<const std::span<const Range>> shares, size_t ranks) {
  std::vector<Range> packed(ranks);
  int64_t end = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    packed[rank].first = end;
    for (const auto& parameter : shares) {
      packed[rank].count += parameter[rank].count;
    }
    end += packed[rank].count;
  }
  return packed;
}

}  // namespace

std::vector<float> initial_values(const ParameterSpec& spec, const Index& index, uint64_t seed,
                                  int threads) {
  std::vector<float> values(static_cast<size_t>(index.kept()),
                            spec.initial == Initial::ones ? 1.0F : 0.0F);
  if (spec.initial == Initial::normal) {
    const uint64_t key = mix(seed, XXH64(spec.name.data(), spec.name.size(), 0));
    draw_normal(index, key, spec.deviation, values, threads);
  }
  return values;
}

Tensor Store::constant(const std::string& name, const Shape& shape,
                       const std::function<std::vector<float>()>& make) {
  Buffer& buffer = constants_[name];
  if (!buffer.tensor()) {
    buffer = arena().allocate(Memory::activation, name, DType::fp32, shape);
    if (!arena().dry()) {
      const Mirror numbers(stream_, buffer.tensor());
      std::ranges::copy(make(), numbers.host().get<float>());
      numbers.write();
    }
  }
  require(buffer.tensor().shape == shape, "a constant has one shape", name, shape.text());
  return buffer.tensor();
}

void Store::initialise(uint64_t seed, const std::function<double(const Parameter&)>& factor) {
  for (Parameter& parameter : parameters_) {
    std::vector<float> values =
        initial_values(parameter.spec, parameter.index, seed, stream_.threads());
    if (const double scale = factor ? factor(parameter) : 1; scale != 1) {
      for (float& value : values) {
        value *= static_cast<float>(scale);
      }
    }
    set_values(parameter, values);
  }
}

void Store::set_values(Parameter& parameter, std::span<const float> packed) {
  require(static_cast<int64_t>(packed.size()) == parameter.kept(), "one value a kept element",
          packed.size(), parameter.kept(), parameter.spec.name);
  const Mirror stored(stream_, part(value(), parameter));
  if (stored.host().dtype == DType::fp32) {
    std::ranges::copy(packed, stored.host().get<float>());
  } else {
    std::vector<float> low(packed.size());
    with_halves(stored.host(), [&]<class Half>(Half* high) {
      for (size_t k = 0; k < packed.size(); ++k) {
        const auto halves = kernels::split<Half>(packed[k]);
        high[k] = halves.high;
        low[k] = static_cast<float>(halves.low);
      }
    });
    if (options_.training) {
      optimizer_.set(StatePart::low, number_of(parameter), low);
    }
  }
  stored.write();
  if (options_.training && optimizer_.has_separate_master(number_of(parameter))) {
    optimizer_.set(StatePart::master, number_of(parameter), packed);
  }
  if (parameter.exact_copy()) {
    const Mirror copy(stream_, parameter.dense);
    std::ranges::copy(packed, copy.host().get<float>());  // also without `low`
    copy.write();
  } else {
    refresh(parameter);
  }
}

void Store::set_common(Parameter& parameter, std::span<const float> packed) {
  require(optimizer_.has_separate_master(number_of(parameter)), "a separate master copy",
          parameter.spec.name);
  const Mirror stored(stream_, part(value(), parameter));
  with_number(stored.host().dtype, [&]<class Number>(Number) {
    std::ranges::transform(packed, stored.host().get<Number>(),
                           [](float value) { return from_float<Number>(value); });
  });
  stored.write();
  refresh(parameter);
}

std::vector<float> Store::values(const Parameter& parameter) {
  std::vector<float> packed(static_cast<size_t>(parameter.kept()));
  const Mirror mirror(stream_, parameter.exact_copy() ? parameter.dense : part(value(), parameter));
  const Tensor& source = mirror.read().host();
  with_number(source.dtype, [&]<class Number>(Number) {
    std::ranges::transform(source.span<Number>(), packed.begin(),
                           [](Number x) { return to_float(x); });
  });
  return packed;
}

std::vector<float> Store::master(const Parameter& parameter) {
  if (options_.training && optimizer_.has_separate_master(number_of(parameter))) {
    return optimizer_.whole(StatePart::master, number_of(parameter));
  }
  if (options_.dtype == DType::fp32) {
    return values(parameter);
  }
  std::vector<float> packed = optimizer_.whole(StatePart::low, number_of(parameter));
  const Mirror mirror(stream_, part(value(), parameter));
  with_halves(mirror.read().host(), [&](const auto* high) {
    for (size_t k = 0; k < packed.size(); ++k) {
      packed[k] = kernels::join(high[k], static_cast<uint16_t>(packed[k]));
    }
  });
  return packed;
}

std::vector<float> Store::moment(const Parameter& parameter, int which) {
  return optimizer_.whole(moment_part(which), number_of(parameter));
}

void Store::set_moment(const Parameter& parameter, int which, std::span<const float> packed) {
  optimizer_.set(moment_part(which), number_of(parameter), packed);
}

int Store::pruning_arrays(const Parameter& parameter) const {
  return options_.training && options_.pruning_arrays ? options_.pruning_arrays(parameter.spec) : 0;
}

std::vector<float> Store::pruning_array(const Parameter& parameter, int which) {
  return optimizer_.whole(pruning_part(which), number_of(parameter));
}

void Store::set_pruning_array(const Parameter& parameter, int which,
                              std::span<const float> packed) {
  optimizer_.set(pruning_part(which), number_of(parameter), packed);
}

/// The master copy of the part of `parameter` that this rank owns.
void Store::write_exact(const Parameter& parameter, const Tensor& to) {
  const OptimizerState mine = state(parameter);
  kernels_.predict(stream_, {.value = mine.value,
                             .low = mine.low,
                             .moment1 = mine.moment1,
                             .moment2 = {},
                             .scale1 = mine.scale1,
                             .scale2 = {},
                             .out = {},
                             .exact = to});
}

void Store::refresh(Parameter& parameter) {
  if (!parameter.copied()) {
    return;
  }
  if (!parameter.exact_copy()) {
    kernels_.scatter(stream_, {.packed = part(value(), parameter),
                               .dense = parameter.dense,
                               .positions = positions(parameter)});
  } else if (options_.training) {
    write_exact(parameter, parameter.dense);
  }
}

void Store::refresh_all() {
  for (Parameter& parameter : parameters_) {
    const size_t p = number_of(parameter);
    const bool all_mine =
        optimizer_.owned(p).count == parameter.kept() && !optimizer_.has_separate_master(p);
    const bool written = all_mine && parameter.dense.dtype == options_.dtype;  // with the step
    if (!parameter.exact_copy() && !written) {
      refresh(parameter);
    }
  }
  if (options_.sharding && options_.dtype != DType::fp32) {
    refresh_exact_vectors();
  }
}

void Store::refresh_exact_vectors() {
  std::vector<size_t> vectors;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].exact_copy()) {
      vectors.push_back(p);
    }
  }
  if (vectors.empty()) {
    return;
  }
  if (options_.sharding->collects_on_device()) {
    refresh_on_device(vectors);
  } else {
    refresh_by_host(vectors);
  }
}

void Store::refresh_on_device(std::span<const size_t> vectors) {
  std::vector<SharedVector> shared;
  for (const size_t p : vectors) {
    const Tensor whole = parameters_[p].dense.reshaped({parameters_[p].size()});
    const Range mine = optimizer_.owned(p);
    if (mine.count > 0) {
      write_exact(parameters_[p], whole.elements(mine.first, mine.count));
    }
    shared.push_back({.whole = whole, .shares = optimizer_.shares(p)});
  }
  options_.sharding->collect_on_device(shared);
}

/// Every rank's parts of all such vectors, one after the other, go to all ranks at once.
void Store::refresh_by_host(std::span<const size_t> vectors) {
  std::vector<std::span<const Range>> shares;
  for (const size_t p : vectors) {
    shares.push_back(optimizer_.shares(p));
  }
  const auto me = static_cast<size_t>(options_.sharding->rank());
  const size_t ranks = shares.front().size();
  const std::vector<Range> packed = packed_by_rank(shares, ranks);
  std::vector<float> all(static_cast<size_t>(packed.back().first + packed.back().count));
  const Mirror mine = Mirror::of_host(
      stream_, Tensor(all.data() + packed[me].first, DType::fp32, Shape{packed[me].count}));
  int64_t written = 0;
  for (const size_t p : vectors) {
    const int64_t owned = optimizer_.owned(p).count;
    if (owned > 0) {
      write_exact(parameters_[p], mine.device().elements(written, owned));
    }
    written += owned;
  }
  mine.read();
  options_.sharding->collect(
      packed, Tensor(all.data(), DType::fp32, Shape{static_cast<int64_t>(all.size())}));
  std::vector<Mirror> copies;
  for (const size_t p : vectors) {
    copies.emplace_back(stream_, parameters_[p].dense);
  }
  const float* from = all.data();
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < vectors.size(); ++i) {
      const auto [first, count] = shares[i][rank];
      std::copy_n(from, count, copies[i].host().get<float>() + first);
      from += count;
    }
  }
  for (const Mirror& copy : copies) {
    copy.write();
  }
}

}  // namespace espalier::sparse
