#include "parallel/choice/choice_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/core/error.h"

namespace espalier::parallel {

namespace {

void check_seconds(const ChoiceTable& table, std::span<const double> seconds) {
  require(seconds.size() == table.bytes.size(), "seconds of each layer and choice", seconds.size(),
          table.bytes.size());
  require(std::ranges::all_of(seconds, [](double s) { return s >= 0 && std::isfinite(s); }),
          "seconds that are finite and not negative");
}

}  // namespace

void ChoiceTable::check() const {
  require(layers >= 0 && choices >= 1 && choices <= 256, "layers and choices", layers, choices);
  const auto cells = static_cast<size_t>(layers * choices);
  require(bytes.size() == cells && error.size() == cells,
          "bytes and errors of each layer and choice", bytes.size(), error.size(), cells);
  require(std::ranges::all_of(bytes, [](int64_t b) { return b >= 0; }), "byte counts");
  // Not "all are >= 0": an error may be NaN.
  require(std::ranges::none_of(error, [](double e) { return e < 0; }), "squared norms");
}

void ExchangeTimes::check(const ChoiceTable& table) const {
  check_seconds(table, seconds);
  require(ready.size() == ends.size(), "when each bucket is ready", ready.size(), ends.size());
  int64_t begin = 0;
  for (const int64_t end : ends) {
    require(end > begin, "ascending ends of buckets", begin, end);
    begin = end;
  }
  require(begin == table.layers, "buckets of all layers", begin, table.layers);
  require(std::ranges::all_of(ready, [](double s) { return std::isfinite(s); }), "finite times");
  require(std::isfinite(backward_end) && std::isfinite(latency) && latency >= 0, "finite times",
          backward_end, latency);
}

std::vector<double> exchange_seconds(const ChoiceTable& table, double bytes_per_second,
                                     std::span<const double> codec_seconds) {
  table.check();
  check_seconds(table, codec_seconds);
  require(bytes_per_second > 0, "a rate", bytes_per_second);
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
