#pragma once
// Costs of each choice (a wire format) for each layer, and the time that an exchange of gradients
// delays a step. error_table.h and timers measure them; bit_choice.h reads them.
//
// Layers are in backward order, and their buckets use one link one after the other:
//
//   end[b] = max(ready[b], end[b - 1]) + latency + sum of its layers' seconds
//   exposed = max(0, end of the last - backward_end)
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::parallel {

struct ChoiceTable {
  int64_t layers = 0;
  int choices = 0;            ///< at most 256
  std::vector<double> error;  ///< [layers][choices] squared L2 norm of the error; may be Inf or NaN
  std::vector<int64_t> bytes;  ///< [layers][choices] of a message

  /// Throws Bug unless sizes fit.
  void check() const;
  size_t at(int64_t layer, int choice) const {
    return static_cast<size_t>(layer * choices + choice);
  }
};

/// Times at which gradients are ready, and times on the link.
struct ExchangeTimes {
  std::vector<double> seconds;  ///< [layers][choices] on the link, encoding and decoding included
  std::vector<int64_t> ends;    ///< of the buckets, in layers, ascending
  std::vector<double> ready;    ///< [buckets] on the time scale of backward_end
  double latency = 0;           ///< of a bucket
  double backward_end = 0;

  /// Throws Bug unless sizes fit and buckets cover the table's layers.
  void check(const ChoiceTable& table) const;
};

/// bytes / bytes_per_second + codec_seconds ([layers][choices]), for ExchangeTimes::seconds.
/// bytes_per_second includes the factor by which a reduction multiplies bytes.
std::vector<double> exchange_seconds(const ChoiceTable& table, double bytes_per_second,
                                     std::span<const double> codec_seconds);

/// Time at which the link is done, for given choices [layers]; -Inf without layers.
double link_end(const ChoiceTable& table, const ExchangeTimes& times, std::span<const int> choice);
double exposed_seconds(const ChoiceTable& table, const ExchangeTimes& times,
                       std::span<const int> choice);

}  // namespace espalier::parallel
