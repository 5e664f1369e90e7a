#include "src/planner/rates.h"

#include "parallel/wire/codec.h"

namespace espalier::planner {
train::ReplicaRates rates_between(const io::Config& config, const Machine& machine,
                                  const cost::Link& link) {
  const DType dtype = dtype_by_name(config.train.dtype);
  const auto coding = [&machine, dtype](std::string_view verb) {
    return [&machine, dtype, verb](const kernels::WireFormat& format, int64_t values) {
      return seconds_of(machine, codec_operation(verb, format, values, dtype), dtype);
    };
  };
  return {.link = link,
          .overlaps = machine.overlaps,
          .memory_per_s = machine.bandwidth,
          .encode_s = coding("encode"),
          .decode_s = coding("decode")};
}

kernels::OperationRow codec_operation(std::string_view verb, const kernels::WireFormat& format,
                                      int64_t values, DType dtype) {
  parallel::CodecSpec codec = parallel::parse_codec(parallel::text_of(format));
  codec.bucket = 0;
  codec.half_meta = false;
  const auto count = static_cast<double>(values);
  return {.name = fmt::format("{} {}", verb, parallel::to_text(codec)),
          .extents = {values, 0, 0, 0},
          .calls = 1,
          .cost = {.flops = 0,
                   .bytes = count * static_cast<double>(size_of(dtype)) +
                            static_cast<double>(kernels::wire_bytes(format, values))}};
}

}  // namespace espalier::planner
