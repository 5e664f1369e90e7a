#include "parallel/choice/choice_table.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"

namespace espalier::parallel {

void ChoiceTable::check_shape() const {
  require(layers >= 0 && choices >= 1 && choices <= 256, "layers and choices", layers, choices);
  const auto cells = static_cast<size_t>(layers * choices);
  require(bytes.size() == cells, "bytes of each layer and choice", bytes.size(), cells);
  require(std::ranges::all_of(bytes, [](int64_t b) { return b >= 0; }), "byte counts");
  require(error.empty() || error.size() == cells, "errors of each layer and choice", error.size(),
          cells);
  // Not "all are >= 0": an error may be NaN.
  require(std::ranges::none_of(error, [](double e) { return e < 0; }), "squared norms");
  require(fixed.empty() || std::ssize(fixed) == layers, "one entry a layer", fixed.size(), layers);
  for (const int choice : fixed) {
    require(choice >= -1 && choice < choices, "a choice, or -1", choice, choices);
  }
}

void ChoiceTable::check_errors() const {
  require(error.size() == bytes.size(), "errors of each layer and choice", error.size(),
          bytes.size());
}

void ChoiceTable::check_seconds(std::span<const double> seconds) const {
  require(seconds.size() == bytes.size(), "seconds of each layer and choice", seconds.size(),
          bytes.size());
  require(std::ranges::all_of(seconds, [](double s) { return s >= 0 && std::isfinite(s); }),
          "seconds that are finite and not negative");
}

}  // namespace espalier::parallel
