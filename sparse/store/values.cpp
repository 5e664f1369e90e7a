// The numbers that a store holds, in and out.
#include <algorithm>

#include "sparse/store/store.h"
#include "src/core/mirror.h"

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

}  // namespace

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
        const auto halves = split<Half>(packed[k]);
        high[k] = halves.high;
        low[k] = static_cast<float>(halves.low);
      }
    });
    if (options_.training) {
      optimizer_.set_low(number_of(parameter), low);
    }
  }
  stored.write();
  if (options_.training && optimizer_.apart(number_of(parameter))) {
    optimizer_.set_master(number_of(parameter), packed);
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
  require(optimizer_.apart(number_of(parameter)), "a master copy apart", parameter.spec.name);
  const Mirror stored(stream_, part(value(), parameter));
  with_number(stored.host().dtype, [&]<class Number>(Number) {
    std::ranges::transform(packed, stored.host().get<Number>(), from_float<Number>);
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
  if (options_.training && optimizer_.apart(number_of(parameter))) {
    return optimizer_.whole_master(number_of(parameter));
  }
  if (options_.dtype == DType::fp32) {
    return values(parameter);
  }
  std::vector<float> packed = optimizer_.whole_low(number_of(parameter));
  const Mirror mirror(stream_, part(value(), parameter));
  with_halves(mirror.read().host(), [&](const auto* high) {
    for (size_t k = 0; k < packed.size(); ++k) {
      packed[k] = join(high[k], static_cast<uint16_t>(packed[k]));
    }
  });
  return packed;
}

std::vector<float> Store::moment(const Parameter& parameter, int which) {
  return optimizer_.whole_moment(number_of(parameter), which);
}

void Store::set_moment(const Parameter& parameter, int which, std::span<const float> packed) {
  optimizer_.set_moment(number_of(parameter), which, packed);
}

/// The master copy of what this rank owns of `parameter`.
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

}  // namespace espalier::sparse
