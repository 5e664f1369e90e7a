#pragma once
// The candidate codecs of a measured choice (codec_choice.h) and the sizes that it times. Functions
// of config and stage alone, so a run and its plan use the same.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "src/train/stage/stage.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {

/// Empty if the config's default names a codec. `gradient`: type of gradients, which uncompressed
/// gradients keep.
std::vector<kernels::WireFormat> codec_candidates(const io::Config& config, DType gradient);

/// The candidate that defines the error budget of "adaptive": `bits` bits in their usual buckets.
int uniform_candidate(const io::Config& config, std::span<const kernels::WireFormat> candidates);

/// Whether the choice times the link.
bool times_link(const io::Config& config);
/// Elements of the longest reduction that times the link. On a device it runs in the gradient
/// buffer and takes little time.
int64_t longest_on_link(const Stage& stage, bool on_device);
/// Elements for timing encode and decode alone.
inline int64_t elements_of_codes(int64_t longest) { return std::max<int64_t>(longest / 4, 1); }

/// With parallel.reduction = "auto": the format that must be faster than uncompressed reduction.
/// Empty: there is none.
std::optional<kernels::WireFormat> doubted_format(const io::Config& config, const Stage& stage);
/// Elements of the longest reduction for that comparison.
int64_t longest_in_doubt(const Stage& stage);

/// The longest timings of a run between devices: reductions, or encode and decode alone (`code`).
struct Timing {
  kernels::WireFormat format;
  int64_t elements = 0;
  bool code = false;
};
std::vector<Timing> longest_timings(const io::Config& config, const Stage& stage);

}  // namespace espalier::train
