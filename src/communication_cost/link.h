#pragma once
// A link between two ranks: a message of b bytes takes latency + b / bandwidth, and the two
// directions are independent. `fit_link` fits both parameters to measured messages by least squares
// of the relative errors, sum of ((latency + b / bandwidth - t) / t)^2. So short messages determine
// the latency and long ones the bandwidth, independently of the noise of long messages. The latency
// is never negative. Source of the form: Hockney, "The communication challenge for MPP", Parallel
// Computing 20, 1994.
#include <limits>
#include <span>

namespace espalier::cost {

struct Link {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();  ///< per direction

  double seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

/// Gbit/s (10^9 bits) → bytes per second.
constexpr double gbit_bytes(double gbit) { return gbit * 1e9 / 8; }

struct LinkSample {
  double bytes = 0;
  double seconds = 0;
};

struct LinkFit {
  Link link;
  double worst = 0;  ///< largest |predicted - measured| / measured
};

/// Needs two sizes or more. Throws Failure if longer messages do not take longer.
LinkFit fit_link(std::span<const LinkSample> samples);

}  // namespace espalier::cost
