#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

bool is_lossy(const std::string& codec) { return codec != "fp32"; }

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
                        .sends_difference = true,
                        .target = rank == me ? store.state(parameter).value : Tensor()});
  }
}

}  // namespace

CodecChooser codec_chooser(const io::Config& config) {
  return parallel::parse_codec(config.parallel.codec.fallback).chooser();
}

std::optional<kernels::WireFormat> gradient_format(const io::Config& config,
                                                   const sparse::ParameterSpec& spec, int64_t kept,
                                                   DType dtype) {
  const io::ParallelConfig& parallel = config.parallel;
  const bool small = spec.shape.rank() == 1 || kept < parallel.codec_min_size;
  const parallel::CodecSpec codec = parallel::parse_codec(parallel.codec.for_name(spec.name));
  if (codec.name == "fp32" || spec.average || (small && !parallel.codec.matches(spec.name))) {
    return parallel::plain_format(dtype);
  }
  if (codec.kind() == parallel::CodecKind::choosing) {
    return std::nullopt;
  }
  return parallel::format_of(codec);
}

bool has_lossy_gradient_codec(const io::Config& config) {
  return config.parallel.codec.any(is_lossy);
}

bool encodes_values(const io::Config& config) {
  return config.parallel.zero != 0 && config.parallel.value_codec.any(is_lossy);
}

std::optional<kernels::WireFormat> value_format(const io::Config& config,
                                                const sparse::ParameterSpec& spec) {
  const io::ParallelConfig& parallel = config.parallel;
  const std::string& codec = parallel.value_codec.for_name(spec.name);
  const bool small = spec.shape.count() < parallel.codec_min_size;
  if (!encodes_values(config) || codec == "fp32" || spec.shape.rank() == 1 ||
      (small && !parallel.value_codec.matches(spec.name))) {
    return std::nullopt;
  }
  return parallel::format_of(parallel::parse_codec(codec));
}

std::vector<parallel::WireSegment> value_segments(const io::Config& config,
                                                  const sparse::Store& store) {
  std::vector<parallel::WireSegment> segments;
  for (size_t p = store.parameters().size(); p-- > 0;) {  // the flat array is in backward order
    const sparse::Parameter& parameter = store.parameters()[p];
    if (store.state(parameter).separate_master) {
      add_changes(store, parameter, *value_format(config, parameter.spec), segments);
    } else {
      segments.push_back({.first = parameter.offset,
                          .count = parameter.kept(),
                          .format = parallel::plain_format(store.value().dtype)});
    }
  }
  return segments;
}

size_t bucket_bytes(const io::Config& config) {
  return static_cast<size_t>(config.parallel.bucket_mb * 1024 * 1024);
}

kernels::WireFormat activation_format(const io::Config& config) {
  return parallel::format_of(parallel::parse_codec(config.parallel.activation_codec));
}

}  // namespace espalier::train
