#pragma once
// The normalizer of a tokenizer.json: a list of steps over a part of a text between added tokens.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/pattern.h"

namespace espalier::io {

class Normalizer {
 public:
  /// No steps if the field is null.
  static Normalizer read(const JsonField& field);

  /// The normalized text: `text` itself, or in `buffer`. `continues`: the text goes on from a
  /// place where `cuts_at` holds, so nothing is put before it.
  std::string_view apply(std::string_view text, bool continues, PatternMemory& memory,
                         std::string& buffer) const;
  /// Whether the text can be normalized in parts: from its start to `at`, and from there.
  bool cuts_at(std::string_view text, size_t at) const;

 private:
  enum class Form { none, nfc, nfd, nfkc, nfkd };
  struct Step {
    Form form = Form::none;
    std::optional<Pattern> pattern;  ///< matches of it become `content`; without: put before
    std::string content;
  };
  void add(const JsonField& field);
  static void compose(std::string_view text, Form form, std::string& out);
  static bool step(const Step& step, std::string_view text, bool continues, PatternMemory& memory,
                   std::string& out);

  std::vector<Step> steps_;
  bool has_form_ = false;
  bool is_local_ = true;  ///< all patterns are
};

}  // namespace espalier::io
