#pragma once
// What codecs that are chosen by measurement (codec_choice.h) are chosen among, and what is timed to
// choose: functions of config and stage alone, for runs and for their plans.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "src/train/exchange/gradient_wire.h"

namespace espalier::train {

/// Empty where the config's default names a codec. `gradient`: the type of gradients, which what
/// travels as it is has.
std::vector<kernels::WireFormat> codec_candidates(const io::Config& config, DType gradient);

/// The one of adaptive that its budget is measured by: as many bits in their usual buckets.
int uniform_candidate(const io::Config& config, std::span<const kernels::WireFormat> candidates);

/// Whether the link itself is timed.
bool times_link(const io::Config& config);
/// Elements of the longest sum for that. On a device it lies in the gradient's memory, and takes
/// little time.
int64_t longest_on_link(const Stage& stage, bool on_device);
/// And of what codecs alone are timed by.
inline int64_t elements_of_codes(int64_t longest) { return std::max<int64_t>(longest / 4, 1); }

/// Where parallel.reduction = "auto": the format that has to be faster than no codec. Empty: none
/// has.
std::optional<kernels::WireFormat> doubted_format(const io::Config& config, const Stage& stage);
/// Elements of the longest sum for that.
int64_t longest_in_doubt(const Stage& stage);

/// What a run between devices times, but for shorter sums: by sums, or codes alone.
struct Timing {
  kernels::WireFormat format;
  int64_t elements = 0;
  bool code = false;
};
std::vector<Timing> longest_timings(const io::Config& config, const Stage& stage);

}  // namespace espalier::train
