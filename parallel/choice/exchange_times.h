#pragma once
// How long an exchange of gradients keeps a step waiting. Layers stand in backward order, and
// buckets of them go over one link one after the other:
//
//   end[b] = max(ready[b], end[b - 1]) + latency + sum of its layers' seconds
//   exposed = max(0, end of the last - backward_end)
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/choice/choice_table.h"

namespace espalier::parallel {

/// When gradients are ready and how long they travel.
struct ExchangeTimes {
  std::vector<double> seconds;  ///< [layers][choices] on the link, codes made and read included
  std::vector<int64_t> ends;    ///< of the buckets, in layers, ascending
  std::vector<double> ready;    ///< [buckets] from the same moment as backward_end
  double latency = 0;           ///< of a bucket
  double backward_end = 0;

  /// Throws Bug unless all are numbers and buckets cover the table's layers.
  void check(const ChoiceTable& table) const;
};

/// bytes / bytes_per_second + codec_seconds ([layers][choices]; empty: none), for
/// ExchangeTimes::seconds. What a reduction multiplies bytes by belongs into the rate.
std::vector<double> exchange_seconds(const ChoiceTable& table, double bytes_per_second,
                                     std::span<const double> codec_seconds = {});

/// When the link has carried everything, for given choices [layers]; -Inf when there are no layers.
double link_end(const ChoiceTable& table, const ExchangeTimes& times, std::span<const int> choice);
double exposed_seconds(const ChoiceTable& table, const ExchangeTimes& times,
                       std::span<const int> choice);

}  // namespace espalier::parallel
