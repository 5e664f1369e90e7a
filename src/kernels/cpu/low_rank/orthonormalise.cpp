// A few rows; compiled once, so that all CPU tables give the same bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "src/kernels/cpu/support.h"
#include "src/kernels/rules/low_rank.h"

namespace espalier::kernels::cpu {
namespace {

/// The order of additions depends on the length alone.
double dot(std::span<const double> a, std::span<const double> b) {
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  double sum = 0;
  for (; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

void subtract(std::span<double> from, double factor, std::span<const double> what) {
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] -= factor * what[i];
  }
}

}  // namespace

void orthonormalise(Stream&, const OrthonormaliseArgs& args) {
  const auto count = static_cast<size_t>(args.x.rows());
  const auto width = static_cast<size_t>(args.x.cols());
  const auto values = args.x.span<float>();
  std::vector<double> rows(values.begin(), values.end());
  const auto row = [&](size_t i) { return std::span(rows).subspan(i * width, width); };
  for (size_t i = 0; i < count; ++i) {
    const auto now = row(i);
    const double before = std::sqrt(dot(now, now));
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t j = 0; j < i; ++j) {
        subtract(now, dot(row(j), now), row(j));
      }
    }
    const double length = std::sqrt(dot(now, now));
    // A non-finite row does not count as dependent, so that NaN propagates.
    const bool dependent = length <= kDependent * before && std::isfinite(before);
    const double scale = dependent ? 0 : 1 / length;
    std::ranges::transform(now, now.begin(), [&](double x) { return dependent ? 0 : x * scale; });
  }
  std::ranges::transform(rows, values.begin(), [](double x) { return static_cast<float>(x); });
}

}  // namespace espalier::kernels::cpu
