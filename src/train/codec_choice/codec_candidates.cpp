#include "src/train/codec_choice/codec_candidates.h"

#include <algorithm>

#include "parallel/wire/codec.h"

namespace espalier::train {
namespace {

constexpr int64_t kFewestBits = 2;
constexpr int64_t kMostBits = 8;
constexpr int64_t kUniformBits = 4;
/// Upper limit of elements in a timed sum.
constexpr int64_t kLongest = int64_t{4} << 20;

}  // namespace

std::vector<kernels::WireFormat> codec_candidates(const io::Config& config, DType gradient) {
  const CodecChooser chooser = codec_chooser(config);
  const parallel::CodecDefaults defaults = codec_defaults(config);
  std::vector<kernels::WireFormat> formats;
  const auto add = [&](const parallel::CodecSpec& codec) {
    formats.push_back(codec.name == "fp32" ? parallel::plain_format(gradient)
                                           : parallel::format_of(codec, defaults));
  };
  if (chooser == CodecChooser::fastest) {
    for (const char* const name : {"fp32", "fp8-e5m2", "maxmin:4", "table:1"}) {
      add(parallel::parse_codec(name));
    }
  } else if (chooser == CodecChooser::adaprec) {
    for (const std::string& name : config.parallel.codec_candidates) {
      add(parallel::parse_codec(name));
    }
  } else if (chooser == CodecChooser::adaptive) {
    const std::vector<int64_t> buckets = config.parallel.bucket > 0
                                             ? std::vector<int64_t>{config.parallel.bucket}
                                             : std::vector<int64_t>{512, 128, 64};
    for (int64_t bits = kFewestBits; bits <= kMostBits; ++bits) {
      for (const int64_t bucket : buckets) {
        add({.name = "maxmin", .bits = bits, .bucket = bucket});
      }
    }
  }
  return formats;
}

int uniform_candidate(const io::Config& config, std::span<const kernels::WireFormat> candidates) {
  const int64_t wanted = config.parallel.bits > 0 ? config.parallel.bits : kUniformBits;
  const kernels::WireFormat uniform =
      parallel::format_of({.name = "maxmin", .bits = std::clamp(wanted, kFewestBits, kMostBits)},
                          codec_defaults(config));
  return static_cast<int>(std::ranges::find(candidates, uniform) - candidates.begin());
}

bool times_link(const io::Config& config) {
  return codec_chooser(config) == CodecChooser::adaptive && config.parallel.codec_goal == "time";
}

int64_t longest_on_link(const Stage& stage, bool on_device) {
  constexpr int64_t kOfTheHost = 262'144;
  return on_device ? std::min(stage.store().flat_size(), kLongest) : kOfTheHost;
}

/// Returns the codec of the largest parameter that is not sent uncompressed.
std::optional<kernels::WireFormat> doubted_format(const io::Config& config, const Stage& stage) {
  if (config.parallel.reduction != "auto" || !loses(config)) {
    return {};
  }
  const CodecChooser chooser = codec_chooser(config);
  if (chooser == CodecChooser::fastest || chooser == CodecChooser::adaprec) {
    return {};  // they measure times themselves
  }
  const sparse::Store& store = stage.store();
  if (chooser == CodecChooser::adaptive) {
    const auto candidates = codec_candidates(config, store.gradient().dtype);
    return candidates[static_cast<size_t>(uniform_candidate(config, candidates))];
  }
  const kernels::WireFormat plain = parallel::plain_format(store.gradient().dtype);
  std::optional<kernels::WireFormat> widest;
  int64_t most = 0;
  for (size_t p = store.parameters().size(); p-- > 0;) {
    const sparse::Parameter& parameter = store.parameters()[p];
    const kernels::WireFormat format = gradient_format(config, stage, parameter).value_or(plain);
    if (format != plain && parameter.kept() > most) {
      widest = format;
      most = parameter.kept();
    }
  }
  return widest;
}

/// The shorter timed sums have a 64th and an eighth of these elements.
int64_t longest_in_doubt(const Stage& stage) {
  constexpr int64_t kParts = 64;
  const int64_t longest = std::min(stage.store().flat_size(), kLongest);
  return longest < kParts ? longest : longest / kParts * kParts;
}

std::vector<Timing> longest_timings(const io::Config& config, const Stage& stage) {
  const sparse::Store& store = stage.store();
  const DType dtype = store.gradient().dtype;
  const kernels::WireFormat plain = parallel::plain_format(dtype);
  const auto candidates = codec_candidates(config, dtype);
  std::vector<Timing> timings;
  if (times_link(config)) {
    const int64_t longest = longest_on_link(stage, true);
    timings.push_back({.format = plain, .elements = longest});
    for (const kernels::WireFormat& format : candidates) {
      timings.push_back({.format = format, .elements = elements_of_codes(longest), .code = true});
    }
  }
  if (const auto format = doubted_format(config, stage); format) {
    timings.push_back({.format = plain, .elements = longest_in_doubt(stage)});
    timings.push_back({.format = *format, .elements = longest_in_doubt(stage)});
  }
  if (codec_chooser(config) == CodecChooser::fastest) {
    int64_t longest = 0;
    for (const sparse::Parameter& parameter : store.parameters()) {
      const bool open = !gradient_format(config, stage, parameter);
      longest = std::max(longest, open ? parameter.kept() : 0);
    }
    for (const kernels::WireFormat& format : candidates) {
      if (longest > 0) {
        timings.push_back({.format = format, .elements = longest});
      }
    }
  }
  return timings;
}

}  // namespace espalier::train
