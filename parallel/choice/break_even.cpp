#include "parallel/choice/break_even.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"

namespace espalier::parallel {

namespace {

double gain(const ExchangePair& pair) { return pair.plain - pair.compressed; }

}  // namespace

int64_t break_even(std::span<const ExchangePair> pairs) {
  require(!pairs.empty(), "something measured");
  const auto pays = [](const ExchangePair& pair) { return gain(pair) > 0; };
  const auto above = std::find_if_not(pairs.rbegin(), pairs.rend(), pays).base();
  if (above == pairs.end()) {
    return kNeverPays;
  }
  if (above == pairs.begin()) {
    return 0;
  }
  const ExchangePair& low = *std::prev(above);  // the largest size where compression saves nothing
  const ExchangePair& high = *above;
  const double part = -gain(low) / (gain(high) - gain(low));
  const auto steps =
      static_cast<int64_t>(std::floor(part * static_cast<double>(high.elements - low.elements)));
  return std::min(low.elements + steps + 1, high.elements);
}

}  // namespace espalier::parallel
