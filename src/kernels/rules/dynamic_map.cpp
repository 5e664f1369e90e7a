#include "src/kernels/rules/dynamic_map.h"

#include <algorithm>

namespace espalier::kernels {
namespace {

std::array<float, 256> make(bool with_sign) {
  std::array<float, 256> values{};  // one element stays zero
  size_t count = 1;
  double decade = 1e-6;
  for (int j = 0; j < 7; ++j, decade *= 10) {
    const int n = with_sign ? 1 << j : 2 << j;
    for (int i = 0; i < n; ++i) {
      const auto value = static_cast<float>(decade * (0.1 + 0.9 * (i + 0.5) / n));
      values[count++] = value;
      if (with_sign) {
        values[count++] = -value;
      }
    }
  }
  values[count++] = 1;
  require(count == values.size(), "the map has 256 values", count);
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

const std::array<float, 256>& dynamic_map(DynamicMap map) {
  static const std::array<float, 256> with_sign = make(true);
  static const std::array<float, 256> without_sign = make(false);
  return map == DynamicMap::with_sign ? with_sign : without_sign;
}

}  // namespace espalier::kernels
