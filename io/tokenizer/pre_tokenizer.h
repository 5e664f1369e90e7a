#pragma once
// The pre-tokenizer of a tokenizer.json: cuts a text into words. The model encodes each by itself.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/pattern.h"

namespace espalier::io {

/// Receives the words of a text, in order.
class WordSink {
 public:
  virtual ~WordSink() = default;
  /// The text can be cut here, `rest` bytes before its end: its beginning and its end, each by
  /// itself, have the words of the whole.
  virtual void cut(size_t rest) = 0;
  /// `cuttable`: the same holds within the word, wherever the model can cut it.
  virtual void word(std::string_view word, bool cuttable, size_t rest) = 0;
};

class PreTokenizer {
 public:
  struct Memory {
    PatternMemory pattern;
    std::vector<std::string> texts;  ///< one per stage
  };
  /// Facts about the text that is cut into words.
  struct Place {
    bool first = true;       ///< it begins where the whole text begins
    bool continues = false;  ///< it begins at a cut: nothing is put before it
    bool open = false;       ///< it ends somewhere: later words may be left out
    size_t rest = 0;         ///< bytes after it, in the sense of `cut_bytes`
  };

  /// One word per text if the field is null.
  static PreTokenizer read(const JsonField& field);

  /// Whether words are encoded as bytes (ByteLevel).
  bool bytes() const { return bytes_; }
  void run(std::string_view text, const Place& place, Memory& memory, WordSink& sink) const;
  /// Bytes of a text where `rest` is counted.
  size_t cut_bytes(std::string_view text) const;

 private:
  enum class Behaviour { isolated, removed, with_previous, with_next, contiguous };
  enum class Prefixed { never, first, always };
  struct Stage {
    std::string space;   ///< in place of each space; empty: spaces stay
    std::string prefix;  ///< put before a text that does not begin with it
    Prefixed prefixed = Prefixed::never;
    std::vector<Pattern> pattern;  ///< none or one
    Behaviour behaviour = Behaviour::isolated;
    bool invert = false;
  };
  struct Part {
    std::string_view text;
    Place place;
    bool at_start = true;
  };
  void add(const JsonField& field);
  void add_byte_level(const JsonField& field);
  void add_metaspace(const JsonField& field);
  void add_split(const JsonField& field);
  void find_cuts();
  void run_stage(size_t number, Part part, Memory& memory, WordSink& sink) const;
  std::string_view changed(size_t number, const Part& part, Memory& memory) const;
  static bool joins(Behaviour behaviour, bool match_before, bool match);

  std::vector<Stage> stages_;
  bool bytes_ = false;
  bool cuts_ = false;       ///< cuts are reported
  size_t cut_stage_ = 0;    ///< by this stage; stages_.size(): at words
  size_t space_bytes_ = 1;  ///< of a space after that stage
};

}  // namespace espalier::io
