// Compiled once, so that all CPU tables give the same bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "src/core/rng.h"
#include "src/kernels/cpu/support.h"

namespace espalier::kernels::cpu {
namespace {

bool finite(std::span<const float> x) {
  return std::ranges::all_of(x, [](float value) { return std::isfinite(value); });
}

/// Random numbers in [-1, 1).
void draw(uint64_t key, int64_t row, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const Philox words = philox(key, static_cast<uint64_t>(row), i / 4);
    out[i] = 2 * uniform(words[i % 4]) - 1;
  }
}

void forget(const KeepFactorArgs& args) {
  std::ranges::fill(args.error.span<float>(), 0.0F);
  with_number(args.gradient.dtype, [&]<class Number>(Number) {
    std::ranges::fill(args.gradient.span<Number>(),
                      from_float<Number>(std::numeric_limits<float>::quiet_NaN()));
  });
}

}  // namespace

void keep_factor(Stream&, const KeepFactorArgs& args) {
  const auto p = args.p.span<float>();
  const auto q = args.q.span<float>();
  if (!finite(p) || !finite(q)) {
    forget(args);
    return;
  }
  const auto rows = static_cast<size_t>(args.p.cols());
  const auto cols = static_cast<size_t>(args.q.cols());
  for (int64_t k = 0; k < args.factor.rows(); ++k) {
    const auto row = static_cast<size_t>(k);
    const auto kept = args.factor.span<float>().subspan(row * cols, cols);
    if (std::ranges::all_of(p.subspan(row * rows, rows), [](float x) { return x == 0; })) {
      draw(args.key, k, kept);
    } else {
      std::ranges::copy(q.subspan(row * cols, cols), kept.begin());
    }
  }
}

}  // namespace espalier::kernels::cpu
