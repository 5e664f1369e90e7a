#pragma once
// Codecs by name: the registry behind `parallel.codec` and the other codec keys.
//
//   value codecs   encode single values (src/kernels/wire_codec.h); these also serve new values
//                  (`value_codec`) and the stages of a pipeline (`activation_codec`)
//   choosing       adaptive, adaptive-time, fastest, adaprec: choose among value codecs during
//                  training (src/train/codec_choice/)
//
// Text forms; omitted numbers have the codec's own default:
//
//   NAME[:NUMBER[:BUCKET]]                 value codecs; the numbers: kernels::WireNumbers
//   maxmin[:BITS[:BUCKET]]:fp16            bucket headers are fp16
//   adaptive[:EVERY[:ERROR]]               also adaptive-time
//   adaprec[:EVERY[:TRIAL[:CODEC+CODEC…]]]
#include <string>
#include <string_view>
#include <vector>

#include "src/kernels/wire_codec.h"

namespace espalier::parallel {

enum class CodecKind : uint8_t { values, choosing };
/// The origin of the gradients' codecs: the config, or measurements (src/train/codec_choice).
enum class CodecChooser : uint8_t { config, adaptive, fastest, adaprec };

struct Codec {
  std::string_view name;
  std::string_view help;
  CodecKind kind = CodecKind::values;
  CodecChooser chooser = CodecChooser::config;  ///< another one for kind `choosing` only
  bool by_time = false;  ///< of adaptive: minimises the added time, not the bytes
  kernels::WireNumbers numbers = kernels::WireNumbers::none;
  int most_bits = 8;       ///< if the number is BITS
  bool half_meta = false;  ///< takes ":fp16"
};
/// Value codecs, in the order of kernels::wire_codecs(), then the others.
Registry<Codec> codecs();

/// A parsed codec text. Numbers of value codecs: 0 if omitted. The members that begin with `every`
/// are of choosing codecs only.
struct CodecSpec {
  std::string name;
  int64_t bits = 0;
  int64_t bucket = 0;                     ///< values
  double share = 0;                       ///< of values kept, in (0, 1]
  bool half_meta = false;                 ///< bucket headers are fp16
  int64_t every = 0;                      ///< adaptive, adaprec: steps between two choices
  double error = 0;                       ///< adaptive: largest error / that of maxmin:4 everywhere
  int64_t trial = 0;                      ///< adaprec: steps of a trial
  std::vector<std::string> candidates{};  ///< adaprec: texts of two or more codecs

  bool operator==(const CodecSpec&) const = default;
  CodecKind kind() const;
  CodecChooser chooser() const;
};
/// Throws Failure that names the error and the fix.
CodecSpec parse_codec(std::string_view text);
/// Inverse of parse_codec.
std::string to_text(const CodecSpec& codec);

/// The wire format of a value codec. Throws Failure for other kinds.
kernels::WireFormat format_of(const CodecSpec& codec);

/// "maxmin:4:512"; parse_codec reads it.
std::string text_of(const kernels::WireFormat& format);

}  // namespace espalier::parallel
