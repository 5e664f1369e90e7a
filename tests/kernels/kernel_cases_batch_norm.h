#pragma once
// The case table, batch normalisation; see kernel_cases.h.
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

namespace reference {

inline double batch_rstd(double variance) { return 1 / std::sqrt(variance + 1e-5); }

}  // namespace reference

struct BatchNormCase {
  int64_t rows = 1, channels = 1;
  DType dtype = kFp32;
  std::string text() const { return fmt::format("{}x{}_{}", rows, channels, kernels::text(dtype)); }
  Shape shape() const { return {rows, channels}; }
  /// Calls body(element, channel).
  template <class Body>
  void each(const Body& body) const {
    for (int64_t i = 0; i < rows * channels; ++i) {
      body(static_cast<size_t>(i), static_cast<size_t>(i % channels));
    }
  }
};

/// x near `centre`: with a large one the variance is a small difference of large sums.
inline Case batch_norm_statistics_case(const BatchNormCase& s, double centre) {
  Case made;
  made.name = fmt::format("batch_norm_statistics_{}_centre{}", s.text(), centre);
  made.operands = {input(s.dtype, s.shape(), centre - 1, centre + 1),
                   output(kFp32, {s.channels}, {1e-6, 1e-6}),
                   output(kFp32, {s.channels}, {1e-6, 1e-5})};
  made.run = [](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.batch_norm_statistics(stream, {.x = t[0], .mean = t[1], .variance = t[2]});
  };
  made.reference = [s](std::vector<Values>& v) {
    const auto share = 1 / static_cast<double>(s.rows);
    v[1].assign(v[1].size(), 0);
    v[2].assign(v[2].size(), 0);
    s.each([&](size_t i, size_t c) { v[1][c] += v[0][i] * share; });
    s.each([&](size_t i, size_t c) { v[2][c] += std::pow(v[0][i] - v[1][c], 2) * share; });
  };
  return made;
}

/// Operands 1 … 4 of the cases below: mean, variance, weight, bias.
inline void add_channel_operands(Case& made, int64_t channels) {
  made.operands.push_back(input(kFp32, {channels}, -0.2, 0.2));
  made.operands.push_back(input(kFp32, {channels}, 0.5, 2));
  made.operands.push_back(input(kFp32, {channels}));
  made.operands.push_back(input(kFp32, {channels}));
}

inline Case batch_norm_case(const BatchNormCase& s, bool adds, bool rectify) {
  Case made;
  made.name = fmt::format("batch_norm_{}_adds{:d}_rectify{:d}", s.text(), adds, rectify);
  made.operands = {input(s.dtype, s.shape())};
  add_channel_operands(made, s.channels);
  made.operands.push_back(output(s.dtype, s.shape(), {2e-6, 2e-6}));
  if (adds) {
    made.operands.push_back(input(s.dtype, s.shape()));
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.batch_norm(stream, {.x = t[0],
                                .mean = t[1],
                                .variance = t[2],
                                .weight = t[3],
                                .bias = t[4],
                                .addend = adds ? t[6] : Tensor{},
                                .y = t[5],
                                .rectify = rectify});
  };
  made.reference = [=](std::vector<Values>& v) {
    s.each([&](size_t i, size_t c) {
      const double normalised = (v[0][i] - v[1][c]) * reference::batch_rstd(v[2][c]);
      const double y = normalised * v[3][c] + v[4][c] + (adds ? v[6][i] : 0);
      v[5][i] = rectify && y < 0 ? 0 : y;
    });
  };
  return made;
}

/// dweight and dbias have type `out`.
inline Case batch_norm_sums_case(const BatchNormCase& s, bool rectify, bool accumulate,
                                 DType out = kFp32) {
  Case made;
  made.name = fmt::format("batch_norm_sums_{}_{}_rectify{:d}_acc{:d}", s.text(), text(out), rectify,
                          accumulate);
  const Tolerance sum{2e-6 + 1e-8 * static_cast<double>(s.rows), 2e-6};
  made.operands = {input(s.dtype, s.shape()),
                   input(kFp32, {s.channels}, -0.2, 0.2),
                   input(kFp32, {s.channels}, 0.5, 2),
                   rectify ? in_out(s.dtype, s.shape(), {}) : input(s.dtype, s.shape()),
                   output(kFp32, {2, s.channels}, sum),
                   in_out_if(accumulate, out, {s.channels}, sum),
                   in_out_if(accumulate, out, {s.channels}, sum)};
  if (rectify) {
    made.operands.push_back(input(s.dtype, s.shape()));
    made.passes_nan = false;  // y decides signs only
  }
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.batch_norm_sums(stream, {.dy = t[3],
                                     .x = t[0],
                                     .y = rectify ? t[7] : Tensor{},
                                     .mean = t[1],
                                     .variance = t[2],
                                     .sums = t[4],
                                     .dweight = t[5],
                                     .dbias = t[6],
                                     .accumulate = accumulate});
  };
  made.reference = [=](std::vector<Values>& v) {
    const auto channels = static_cast<size_t>(s.channels);
    v[4].assign(v[4].size(), 0);
    s.each([&](size_t i, size_t c) {
      v[3][i] = rectify && v[7][i] <= 0 ? 0 : v[3][i];
      v[4][c] += v[3][i];
      v[4][channels + c] += v[3][i] * (v[0][i] - v[1][c]) * reference::batch_rstd(v[2][c]);
    });
    for (size_t c = 0; c < channels; ++c) {
      v[5][c] = (accumulate ? v[5][c] : 0) + v[4][channels + c];
      v[6][c] = (accumulate ? v[6][c] : 0) + v[4][c];
    }
  };
  return made;
}

/// `in_place`: dx over g, as in a network. The sums are those of some replicas.
inline Case batch_norm_backward_case(const BatchNormCase& s, bool in_place, int64_t replicas = 2) {
  Case made;
  made.name = fmt::format("batch_norm_backward_{}_in_place{:d}", s.text(), in_place);
  made.operands = {input(s.dtype, s.shape())};
  add_channel_operands(made, s.channels);
  made.operands.back() = input(kFp32, {2, s.channels});  // sums
  const Tolerance tolerance{2e-6, 2e-6};
  made.operands.push_back(in_place ? in_out(s.dtype, s.shape(), tolerance)
                                   : input(s.dtype, s.shape()));
  if (!in_place) {
    made.operands.push_back(output(s.dtype, s.shape(), tolerance));
  }
  const int64_t count = replicas * s.rows;
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.batch_norm_backward(stream, {.g = t[5],
                                         .x = t[0],
                                         .mean = t[1],
                                         .variance = t[2],
                                         .weight = t[3],
                                         .sums = t[4],
                                         .dx = t.back(),
                                         .count = count});
  };
  made.reference = [=](std::vector<Values>& v) {
    const auto channels = static_cast<size_t>(s.channels);
    s.each([&](size_t i, size_t c) {
      const double rstd = reference::batch_rstd(v[2][c]);
      const double normalised = (v[0][i] - v[1][c]) * rstd;
      const double centre =
          (v[4][c] + normalised * v[4][channels + c]) / static_cast<double>(count);
      v.back()[i] = v[3][c] * rstd * (v[5][i] - centre);
    });
  };
  return made;
}

/// Gradients of type `out`.
inline Case batch_norm_average_case(int64_t channels, bool accumulate, DType out) {
  Case made;
  made.name = fmt::format("batch_norm_average_{}_{}_acc{:d}", channels, text(out), accumulate);
  add_channel_operands(made, channels);
  for (int i = 0; i < 2; ++i) {
    made.operands.push_back(in_out_if(accumulate, out, {channels}, {1e-6, 1e-6}));
  }
  constexpr int64_t kCount = 5;
  constexpr float kShare = 0.25F;
  made.run = [=](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.batch_norm_average(stream, {.mean = t[0],
                                        .variance = t[1],
                                        .average_mean = t[2],
                                        .average_variance = t[3],
                                        .dmean = t[4],
                                        .dvariance = t[5],
                                        .count = kCount,
                                        .share = kShare,
                                        .accumulate = accumulate});
  };
  made.reference = [=](std::vector<Values>& v) {
    for (size_t c = 0; c < v[0].size(); ++c) {
      v[4][c] = (accumulate ? v[4][c] : 0) + kShare * (v[2][c] - v[0][c]);
      v[5][c] = (accumulate ? v[5][c] : 0) + kShare * (v[3][c] - v[1][c] * kCount / (kCount - 1.0));
    }
  };
  return made;
}

inline void add_batch_norm_cases(std::vector<Case>& cases, const BatchNormCase& s) {
  cases.push_back(batch_norm_statistics_case(s, 0));
  cases.push_back(batch_norm_statistics_case(s, 40));
  for (const bool flag : {false, true}) {
    for (const bool rectify : {false, true}) {
      cases.push_back(batch_norm_case(s, flag, rectify));
      cases.push_back(batch_norm_sums_case(s, rectify, flag));
    }
    cases.push_back(batch_norm_backward_case(s, flag));
    cases.push_back(batch_norm_average_case(s.channels, flag, s.dtype));
  }
  cases.push_back(batch_norm_sums_case(s, true, true, s.dtype));
}

}  // namespace espalier::kernels
