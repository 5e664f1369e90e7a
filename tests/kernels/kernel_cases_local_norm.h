#pragma once
// The case table, local response normalisation; see kernel_cases.h.
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

/// Scales far from 1, unlike those of the default alpha.
struct LocalNormCase {
  int64_t rows = 1, channels = 1;
  DType dtype = kFp32;
  LocalNorm norm{};
  LocalNorm with_scales() const {
    return {.extent = norm.extent, .alpha = 0.75F * static_cast<float>(norm.extent), .k = 0.5F};
  }
  std::string text() const {
    return fmt::format("{}x{}_{}_extent{}", rows, channels, kernels::text(dtype), norm.extent);
  }
  Shape shape() const { return {rows, channels}; }
  /// Calls body(element, neighbour) for all neighbours of all elements, itself among them.
  template <class Body>
  void each(const Body& body) const {
    for (int64_t i = 0; i < rows * channels; ++i) {
      for (int64_t j = i - norm.half(); j <= i + norm.half(); ++j) {
        if (j >= i / channels * channels && j < (i / channels + 1) * channels) {
          body(static_cast<size_t>(i), static_cast<size_t>(j));
        }
      }
    }
  }
  Values scales(const Values& x) const {
    const LocalNorm by = with_scales();
    Values scale(x.size(), static_cast<double>(by.k));
    each([&](size_t i, size_t j) { scale[i] += static_cast<double>(by.share()) * x[j] * x[j]; });
    return scale;
  }
};

inline Case local_norm_case(const LocalNormCase& s) {
  Case made;
  made.name = fmt::format("local_norm_{}", s.text());
  made.operands = {input(s.dtype, s.shape()), output(s.dtype, s.shape(), {1e-6, 2e-6})};
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.local_norm(stream, {.norm = s.with_scales(), .x = t[0], .y = t[1]});
  };
  made.reference = [s](std::vector<Values>& v) {
    const Values scale = s.scales(v[0]);
    for (size_t i = 0; i < v[0].size(); ++i) {
      v[1][i] = v[0][i] * std::pow(scale[i], -0.75);
    }
  };
  return made;
}

inline Case local_norm_backward_case(const LocalNormCase& s) {
  Case made;
  made.name = fmt::format("local_norm_backward_{}", s.text());
  made.operands = {input(s.dtype, s.shape()), input(s.dtype, s.shape()),
                   output(s.dtype, s.shape(), {1e-5, 4e-6})};
  made.run = [s](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.local_norm_backward(stream,
                                {.norm = s.with_scales(), .dy = t[0], .x = t[1], .dx = t[2]});
  };
  made.reference = [s](std::vector<Values>& v) {
    const Values scale = s.scales(v[1]);
    const auto share = static_cast<double>(s.with_scales().share());
    Values terms(v[1].size());
    for (size_t i = 0; i < v[1].size(); ++i) {
      v[2][i] = v[0][i] * std::pow(scale[i], -0.75);
      terms[i] = 1.5 * share * v[0][i] * v[1][i] * std::pow(scale[i], -1.75);
    }
    s.each([&](size_t i, size_t j) { v[2][i] -= v[1][i] * terms[j]; });
  };
  return made;
}

inline void add_local_norm_cases(std::vector<Case>& cases, const LocalNormCase& s) {
  cases.push_back(local_norm_case(s));
  cases.push_back(local_norm_backward_case(s));
}

}  // namespace espalier::kernels
