#pragma once
// What names a codec in a config: NAME, or NAME:NUMBER, or NAME:NUMBER:BUCKET.
//
//   fp32 bf16 fp16                                  no numbers
//   fp8-e5m2 fp8-e4m3 dynamic8 dynamic8-bnb static8 mantissa8 linear8 sign      NAME[:BUCKET]
//   maxmin table                                    NAME[:BITS[:BUCKET]], bits 1 ... 8
//   topk                                            topk[:SHARE[:BUCKET]], share of values in (0, 1]
//   powersgd                                        powersgd[:RANK]
//   adaptive fastest adaprec                        choose among these while training goes on
//
// What is not given is 0: the codec's own default. What they do: docs/codecs.md.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace espalier::io {

struct CodecSpec {
  std::string name;
  int64_t bits = 0;
  int64_t bucket = 0;  ///< values
  double share = 0;
  int64_t rank = 0;

  bool operator==(const CodecSpec&) const = default;
};

/// Throws Failure that says what is wrong with the text, and what is right.
CodecSpec parse_codec(std::string_view text);
/// parse_codec gives the same back.
std::string to_text(const CodecSpec& codec);

/// Codes of single values, which also serve between the stages of a pipeline.
std::span<const std::string> value_codecs();
/// Those that choose among others.
std::span<const std::string> choosing_codecs();
/// All.
std::span<const std::string> codec_names();

}  // namespace espalier::io
