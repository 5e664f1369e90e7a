#include "parallel/choice/exchange_times.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "src/core/error.h"

namespace espalier::parallel {

void ExchangeTimes::check(const ChoiceTable& table) const {
  table.check_seconds(seconds);
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
  table.check_shape();
  require(bytes_per_second > 0, "a rate", bytes_per_second);
  std::vector<double> seconds;
  seconds.reserve(table.bytes.size());
  for (const int64_t bytes : table.bytes) {
    seconds.push_back(static_cast<double>(bytes) / bytes_per_second);
  }
  if (!codec_seconds.empty()) {
    table.check_seconds(codec_seconds);
    std::ranges::transform(seconds, codec_seconds, seconds.begin(), std::plus());
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
