#pragma once
// The decoder of a tokenizer.json: a list of steps from the tokens of a text to the text.
#include <string>
#include <vector>

#include "io/tokenizer/pattern.h"

namespace espalier::io {

class TokenDecoder {
 public:
  /// Tokens with spaces between them if the field is null, as `tokenizers` does.
  static TokenDecoder read(const JsonField& field);
  std::string decode(std::vector<std::string> tokens) const;

 private:
  enum class Kind { byte_level, byte_fallback, fuse, replace, strip, metaspace };
  struct Step {
    Kind kind = Kind::fuse;
    std::vector<Pattern> pattern;  ///< of replace
    std::string content;           ///< of replace: the new text; strip, metaspace: a character
    size_t start = 0;              ///< of strip: at most so many
    size_t stop = 0;
    bool prefixed = false;  ///< of metaspace: the first token begins with one that no text has
  };
  void add(const JsonField& field);
  static void run(const Step& step, std::vector<std::string>& tokens, PatternMemory& memory);

  bool joins_with_spaces_ = true;
  std::vector<Step> steps_;
};

}  // namespace espalier::io
