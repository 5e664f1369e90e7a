#include "src/communication_cost/link.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"

namespace espalier::cost {
namespace {

/// Sums over the samples, weighted by 1 / t^2: of 1, b, b^2, t and b t.
struct Sums {
  double one = 0, b = 0, bb = 0, t = 0, bt = 0;
};

Sums weighted_sums(std::span<const LinkSample> samples, double unit) {
  Sums sums;
  for (const auto& [bytes, seconds] : samples) {
    const double b = bytes / unit;
    const double weight = 1 / (seconds * seconds);
    sums.one += weight;
    sums.b += weight * b;
    sums.bb += weight * b * b;
    sums.t += weight * seconds;
    sums.bt += weight * b * seconds;
  }
  return sums;
}

}  // namespace

LinkFit fit_link(std::span<const LinkSample> samples) {
  double largest = 0;
  double smallest = std::numeric_limits<double>::infinity();
  for (const auto& [bytes, seconds] : samples) {
    check(std::isfinite(bytes) && bytes >= 0, "a message of {} bytes was measured", bytes);
    check(std::isfinite(seconds) && seconds > 0, "a message of {} bytes took {} s", bytes, seconds);
    largest = std::max(largest, bytes);
    smallest = std::min(smallest, bytes);
  }
  check(smallest < largest,
        "messages of one size determine no bandwidth ({} measured): measure two sizes or more",
        samples.size());
  const Sums sums =
      weighted_sums(samples, largest);  // sizes relative to the largest avoid overflow
  const double determinant = sums.one * sums.bb - sums.b * sums.b;
  double latency = (sums.bb * sums.t - sums.b * sums.bt) / determinant;
  double slope = (sums.one * sums.bt - sums.b * sums.t) / determinant;
  if (!(latency >= 0)) {  // the best non-negative latency is 0
    latency = 0;
    slope = sums.bt / sums.bb;
  }
  check(slope > 0,
        "longer messages did not take longer, so no bandwidth fits: measure longer messages, and "
        "more "
        "of them");
  LinkFit fit{.link = {.latency_s = latency, .bytes_per_s = largest / slope}};
  for (const auto& [bytes, seconds] : samples) {
    fit.worst = std::max(fit.worst, std::abs(fit.link.seconds(bytes) - seconds) / seconds);
  }
  return fit;
}

}  // namespace espalier::cost
