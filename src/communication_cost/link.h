#pragma once
// A link between two ranks: a message of b bytes takes latency + b / bandwidth, and one direction
// does not slow the other. `fit_link` finds both from measured messages: the least squares of the
// relative errors, sum of ((latency + b / bandwidth - t) / t)^2, so that short messages fix the
// latency and long ones the bandwidth, whatever noise the long ones have. The latency is never
// negative. Source of the form: Hockney, "The communication challenge for MPP", Parallel Computing
// 20, 1994.
#include <limits>
#include <span>

namespace espalier::cost {

struct Link {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();  ///< each way

  double seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

/// Gbit/s (10^9 bits) of a link → bytes a second.
constexpr double gbit_bytes(double gbit) { return gbit * 1e9 / 8; }

struct LinkSample {
  double bytes = 0;
  double seconds = 0;
};

struct LinkFit {
  Link link;
  double worst = 0;  ///< largest |predicted - measured| / measured
};

/// At least two sizes; Failure when longer messages do not take longer.
LinkFit fit_link(std::span<const LinkSample> samples);

}  // namespace espalier::cost
