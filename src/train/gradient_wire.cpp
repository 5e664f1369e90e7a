#include "src/train/gradient_wire.h"

#include <algorithm>

#include "parallel/codec.h"

namespace espalier::train {

kernels::WireFormat gradient_format(const io::Config& config, const sparse::ParameterSpec& spec,
                                    int64_t kept, DType dtype) {
  const io::ParallelConfig& parallel = config.parallel;
  const bool asked_for = parallel.codec.matches(spec.name);
  const bool small = spec.shape.rank() == 1 || kept < parallel.codec_min_size;
  const io::CodecSpec codec = io::parse_codec(parallel.codec.for_name(spec.name));
  const bool factored =
      codec.name == "powersgd";  // low_rank_codec.h; the rest of those as they are
  if (codec.name == "fp32" || factored || (small && !asked_for)) {
    return parallel::plain_format(dtype);
  }
  return parallel::format_of(codec, {.bits = parallel.bits,
                                     .bucket = parallel.bucket,
                                     .half_meta = parallel.codec_meta == "fp16"});
}

std::vector<parallel::WireSegment> gradient_segments(const io::Config& config, Stage& stage) {
  const sparse::Store& store = stage.store();
  const DType dtype = store.gradient().dtype;
  std::vector<parallel::WireSegment> segments;
  for (size_t p = store.parameters().size(); p-- > 0;) {  // the flat array is in backward order
    const sparse::Parameter& parameter = store.parameters()[p];
    const bool tied = stage.tied_apart() && parameter.spec.name == kTiedParameter;
    segments.push_back(
        {.first = parameter.offset,
         .count = parameter.kept(),
         .format = tied ? parallel::plain_format(dtype)
                        : gradient_format(config, parameter.spec, parameter.kept(), dtype)});
  }
  return segments;
}

bool loses(const io::Config& config) {
  const auto plain = [](const std::string& codec) { return codec == "fp32"; };
  const io::Patterned& codec = config.parallel.codec;
  return !plain(codec.fallback) ||
         !std::ranges::all_of(codec.patterns, plain, &std::pair<std::string, std::string>::second);
}

}  // namespace espalier::train
