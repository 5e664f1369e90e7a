#include "src/core/rng.h"

#include <cmath>
#include <numbers>

namespace espalier {

std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  const double u =
      (static_cast<double>(a) + 1.0) * 0x1.0p-32;  // (0, 1]: the logarithm stays finite
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(b) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

}  // namespace espalier
