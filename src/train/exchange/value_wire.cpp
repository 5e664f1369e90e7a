#include "src/train/exchange/value_wire.h"

#include "parallel/wire/codec.h"
#include "src/train/exchange/gradient_wire.h"

namespace espalier::train {
namespace {

/// Adds one segment per owner's part; `target` is set for this rank's own part only.
void add_changes(const sparse::Store& store, const sparse::Parameter& parameter,
                 const kernels::WireFormat& format, std::vector<parallel::WireSegment>& segments) {
  const auto shares = store.shares(parameter);
  const auto me = static_cast<size_t>(store.options().sharding->rank());
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank].count == 0) {
      continue;
    }
    segments.push_back({.first = parameter.offset + shares[rank].first,
                        .count = shares[rank].count,
                        .format = format,
                        .change = true,
                        .target = rank == me ? store.state(parameter).value : Tensor()});
  }
}

}  // namespace

bool codes_values(const io::Config& config) {
  return config.parallel.zero != 0 && loses(config.parallel.value_codec);
}

std::optional<kernels::WireFormat> value_format(const io::Config& config,
                                                const sparse::ParameterSpec& spec) {
  const io::ParallelConfig& parallel = config.parallel;
  const std::string& codec = parallel.value_codec.for_name(spec.name);
  const bool small = spec.shape.count() < parallel.codec_min_size;
  if (!codes_values(config) || codec == "fp32" || spec.shape.rank() == 1 ||
      (small && !parallel.value_codec.matches(spec.name))) {
    return std::nullopt;
  }
  return parallel::format_of(parallel::parse_codec(codec), codec_defaults(config));
}

std::vector<parallel::WireSegment> value_segments(const io::Config& config,
                                                  const sparse::Store& store) {
  std::vector<parallel::WireSegment> segments;
  for (size_t p = store.parameters().size(); p-- > 0;) {  // the flat array is in backward order
    const sparse::Parameter& parameter = store.parameters()[p];
    if (store.state(parameter).apart) {
      add_changes(store, parameter, *value_format(config, parameter.spec), segments);
    } else {
      segments.push_back({.first = parameter.offset,
                          .count = parameter.kept(),
                          .format = parallel::plain_format(store.value().dtype)});
    }
  }
  return segments;
}

}  // namespace espalier::train
