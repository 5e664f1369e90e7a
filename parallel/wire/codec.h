#pragma once
// Codecs by name: the registry behind `parallel.codec` and the other codec keys.
//
//   value codecs   encode single values (src/kernels/wire_codec.h); these also serve new values
//                  (`value_codec`) and the stages of a pipeline (`activation_codec`)
//   choosing       adaptive, fastest, adaprec: choose among value codecs during training
//                  (src/train/codec_choice/)
//
// Text form: NAME, NAME:NUMBER or NAME:NUMBER:BUCKET; the meaning of the numbers:
// kernels::WireNumbers. Omitted numbers default to the config's (CodecDefaults), then to the
// codec's own.
#include <string>
#include <string_view>

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
  kernels::WireNumbers numbers = kernels::WireNumbers::none;
  int most_bits = 8;  ///< if the number is BITS
};
/// Value codecs, in the order of kernels::wire_codecs(), then the others.
Registry<Codec> codecs();

/// A parsed codec text; 0: omitted.
struct CodecSpec {
  std::string name;
  int64_t bits = 0;
  int64_t bucket = 0;  ///< values
  double share = 0;    ///< of values kept, in (0, 1]

  bool operator==(const CodecSpec&) const = default;
  CodecKind kind() const;
  CodecChooser chooser() const;
};
/// Throws Failure that names the error and the fix.
CodecSpec parse_codec(std::string_view text);
/// Inverse of parse_codec.
std::string to_text(const CodecSpec& codec);

/// Numbers that the config sets for all codecs; 0: the codec's own default.
struct CodecDefaults {
  int64_t bits = 0;
  int64_t bucket = 0;
  bool half_meta = false;  ///< of maxmin
};

/// The wire format of a value codec. Throws Failure for other kinds.
kernels::WireFormat format_of(const CodecSpec& codec, const CodecDefaults& defaults = {});

/// "maxmin:4:512"; parse_codec reads it.
std::string text_of(const kernels::WireFormat& format);

}  // namespace espalier::parallel
