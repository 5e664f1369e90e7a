// The numbers that a store holds, in and out.
#include <algorithm>

#include "sparse/store.h"

namespace espalier::sparse {

void Store::set_values(Parameter& parameter, std::span<const float> packed) {
  require(static_cast<int64_t>(packed.size()) == parameter.kept(), "one value a kept element",
          packed.size(), parameter.kept(), parameter.spec.name);
  const Tensor stored = part(value(), parameter);
  if (stored.dtype == DType::fp32) {
    std::ranges::copy(packed, stored.get<float>());
  } else {
    std::vector<float> low(packed.size());
    auto* high = stored.get<bf16>();
    for (size_t k = 0; k < packed.size(); ++k) {
      const SplitFloat halves = split(packed[k]);
      high[k] = halves.high;
      low[k] = static_cast<float>(halves.low);
    }
    if (options_.training) {
      optimizer_.set_low(number_of(parameter), low);
    }
  }
  if (options_.training && optimizer_.apart(number_of(parameter))) {
    optimizer_.set_master(number_of(parameter), packed);
  }
  if (parameter.exact_copy()) {
    std::ranges::copy(packed, parameter.dense.get<float>());  // also without `low`
  } else {
    refresh(parameter);
  }
}

void Store::set_common(Parameter& parameter, std::span<const float> packed) {
  require(optimizer_.apart(number_of(parameter)), "a master copy apart", parameter.spec.name);
  const Tensor stored = part(value(), parameter);
  for (size_t k = 0; k < packed.size(); ++k) {
    if (stored.dtype == DType::fp32) {
      stored.get<float>()[k] = packed[k];
    } else {
      stored.get<bf16>()[k] = to_bf16(packed[k]);
    }
  }
  refresh(parameter);
}

std::vector<float> Store::values(const Parameter& parameter) {
  std::vector<float> packed(static_cast<size_t>(parameter.kept()));
  const Tensor source = parameter.exact_copy() ? parameter.dense : part(value(), parameter);
  for (size_t k = 0; k < packed.size(); ++k) {
    packed[k] =
        source.dtype == DType::fp32 ? source.get<float>()[k] : to_float(source.get<bf16>()[k]);
  }
  return packed;
}

std::vector<float> Store::master(const Parameter& parameter) {
  if (options_.training && optimizer_.apart(number_of(parameter))) {
    return optimizer_.whole_master(number_of(parameter));
  }
  if (options_.dtype == DType::fp32) {
    return values(parameter);
  }
  std::vector<float> packed = optimizer_.whole_low(number_of(parameter));
  const bf16* high = part(value(), parameter).get<bf16>();
  for (size_t k = 0; k < packed.size(); ++k) {
    packed[k] = join(high[k], static_cast<uint16_t>(packed[k]));
  }
  return packed;
}

std::vector<float> Store::moment(const Parameter& parameter, int which) {
  return optimizer_.whole_moment(number_of(parameter), which);
}

void Store::set_moment(const Parameter& parameter, int which, std::span<const float> packed) {
  optimizer_.set_moment(number_of(parameter), which, packed);
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
    std::ranges::copy(master(parameter), parameter.dense.get<float>());
  }
}

}  // namespace espalier::sparse
