#pragma once
// Patterns of a tokenizer.json: a fixed text, or a regular expression. PCRE2 matches it, compiled
// to machine code where the system allows that; the file's syntax is Oniguruma's (Ruby), which
// differs in some classes: those are translated, or refused by name.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "io/tokenizer/json_field.h"

namespace espalier::io {

/// Memory of matches; one per thread.
class PatternMemory {
 public:
  PatternMemory();
  ~PatternMemory();
  PatternMemory(const PatternMemory&) = delete;
  PatternMemory& operator=(const PatternMemory&) = delete;

 private:
  friend class Pattern;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class Pattern {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  enum class Found {
    match,
    nothing,
    undecided,  ///< more text may change the answer
  };

  /// {"String": …} or {"Regex": …}.
  static Pattern read(const JsonField& field);
  static Pattern literal(std::string text);
  /// `place` is named in errors.
  static Pattern regex(const std::string& expression, const JsonField& place);

  /// The first match in the valid UTF-8 `text` at or after `from`. `open`: more text may follow.
  Found find(std::string_view text, size_t from, bool open, PatternMemory& memory,
             Match& match) const;

  /// Writes `text` with `content` in place of each match to `out`; false: there is none, and `out`
  /// is not used.
  bool replace_all(std::string_view text, std::string_view content, PatternMemory& memory,
                   std::string& out) const;

  /// Whether each match is one code point, whatever surrounds it.
  bool is_local() const { return local_; }
  /// Whether a match may depend on text before it.
  bool looks_back() const { return looks_back_; }
  /// Each match is one code point of this property.
  void set_local() { local_ = true; }

 private:
  struct Code;
  std::string literal_;
  std::shared_ptr<const Code> code_;  ///< null: a literal
  bool local_ = false;
  bool looks_back_ = false;
};

}  // namespace espalier::io
