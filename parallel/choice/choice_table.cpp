#include "parallel/choice/choice_table.h"

#include <algorithm>
#include <limits>

#include "src/core/error.h"

namespace espalier::parallel {

void ChoiceTable::check() const {
  const auto cells = static_cast<size_t>(layers * choices);
  require(choices >= 1 && choices <= 256 && bytes.size() == cells && error.size() == cells,
          "bytes and errors of each layer and choice", layers, choices, bytes.size(), error.size());
}

void ExchangeTimes::check(const ChoiceTable& table) const {
  require(seconds.size() == table.bytes.size(), "seconds of each layer and choice", seconds.size(),
          table.bytes.size());
  require(ready.size() == ends.size() && std::ranges::is_sorted(ends) &&
              (ends.empty() ? 0 : ends.back()) == table.layers,
          "buckets of all layers", ready.size(), ends.size(), table.layers);
}

std::vector<double> exchange_seconds(const ChoiceTable& table, double bytes_per_second,
                                     std::span<const double> codec_seconds) {
  require(codec_seconds.size() == table.bytes.size(), "seconds of each layer and choice",
          codec_seconds.size(), table.bytes.size());
  std::vector<double> seconds;
  for (size_t i = 0; i < table.bytes.size(); ++i) {
    seconds.push_back(static_cast<double>(table.bytes[i]) / bytes_per_second + codec_seconds[i]);
  }
  return seconds;
}

double link_end(const ChoiceTable& table, const ExchangeTimes& times, std::span<const int> choice) {
  times.check(table);
  require(std::ssize(choice) == table.layers, "a choice for each layer", choice.size(),
          table.layers);
  double end = -std::numeric_limits<double>::infinity();
  int64_t l = 0;
  for (size_t b = 0; b < times.ends.size(); ++b) {
    end = std::max(end, times.ready[b]) + times.latency;
    for (; l < times.ends[b]; ++l) {
      end += times.seconds[table.at(l, choice[static_cast<size_t>(l)])];
    }
  }
  return end;
}

double exposed_seconds(const ChoiceTable& table, const ExchangeTimes& times,
                       std::span<const int> choice) {
  return std::max(0.0, link_end(table, times, choice) - times.backward_end);
}

}  // namespace espalier::parallel
