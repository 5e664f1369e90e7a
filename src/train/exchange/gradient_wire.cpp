#include "src/train/exchange/gradient_wire.h"

#include <algorithm>

#include "parallel/reduction/registry.h"

namespace espalier::train {

parallel::CodecDefaults codec_defaults(const io::Config& config) {
  return {.bits = config.parallel.bits,
          .bucket = config.parallel.bucket,
          .half_meta = config.parallel.codec_meta == "fp16"};
}

std::optional<kernels::WireFormat> gradient_format(const io::Config& config,
                                                   const sparse::ParameterSpec& spec, int64_t kept,
                                                   DType dtype) {
  const io::ParallelConfig& parallel = config.parallel;
  const bool named = parallel.codec.matches(spec.name);
  const bool small = spec.shape.rank() == 1 || kept < parallel.codec_min_size;
  const parallel::CodecSpec codec = parallel::parse_codec(parallel.codec.for_name(spec.name));
  // Factors: low_rank_codec.h; other parameters are sent uncompressed.
  const bool factored = codec.kind() == parallel::CodecKind::matrices;
  if (codec.name == "fp32" || factored || (small && !named)) {
    return parallel::plain_format(dtype);
  }
  if (codec.kind() == parallel::CodecKind::choosing) {
    return std::nullopt;
  }
  return parallel::format_of(codec, codec_defaults(config));
}

std::optional<kernels::WireFormat> gradient_format(const io::Config& config, const Stage& stage,
                                                   const sparse::Parameter& parameter) {
  const DType dtype = stage.store().gradient().dtype;
  if (parameter.spec.name == stage.tied_parameter()) {
    return parallel::plain_format(dtype);
  }
  return gradient_format(config, parameter.spec, parameter.kept(), dtype);
}

bool loses(const io::Patterned& codec) {
  const auto plain = [](const std::string& name) { return name == "fp32"; };
  return !plain(codec.fallback) ||
         !std::ranges::all_of(codec.patterns, plain, &std::pair<std::string, std::string>::second);
}

size_t bucket_bytes(const io::Config& config) {
  return static_cast<size_t>(config.parallel.bucket_mb * 1024 * 1024);
}

std::string reduction_name(const io::Config& config, const parallel::Communicator& comm) {
  const std::string& wanted = config.parallel.reduction;
  return wanted == "auto" ? std::string(parallel::best_reduction(comm.members())) : wanted;
}

}  // namespace espalier::train
