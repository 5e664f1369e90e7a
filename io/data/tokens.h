#pragma once
// Token datasets: memory-mapped files seen as one long sequence of int32 tokens.
//
//   kind     files                                             vocabulary
//   bytes    any                                               256
//   chars    any                                               the bytes that occur in all the data
//   tokens   little-endian uint16 or uint32 (nanoGPT), or      given, or the largest token + 1
//            with the 256-int32 header of llm.c (found by
//            its magic number); texts, with a tokenizer
//
// Validation = its own files, or the last part of the training data; the two never overlap. The
// training order is a pure function of (seed, step, index in the global batch), so resume and a
// change of the number of ranks keep it. Evaluation reads fixed consecutive windows.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/config/config.h"

namespace espalier::io {

class Tokenizer;

enum class Split : uint8_t { train, validation };
std::string_view name_of(Split split);

/// The rule for files of kind "tokens": one holds tokens if it is named *.bin or has the note
/// FILE.json of `espalier data tokenize`; any other file is a text.
bool is_token_file(const std::string& path);

/// The bytes that tokens of kind "chars" stand for: token t is byte bytes()[t].
class Vocabulary {
 public:
  Vocabulary() = default;
  /// Sorted, each once.
  explicit Vocabulary(std::string bytes);
  static Vocabulary all_bytes();
  /// From text(); throws Failure when it is not such text.
  static Vocabulary from_text(std::string_view text);

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  const std::string& bytes() const { return bytes_; }
  /// Two hex digits a byte, as checkpoints hold it.
  std::string text() const;
  /// -1 when the byte is not in the vocabulary.
  int32_t token(unsigned char byte) const;
  std::vector<int32_t> encode(
      std::string_view text) const;  ///< throws Failure naming an unknown byte
  std::string decode(std::span<const int32_t> tokens) const;
  bool operator==(const Vocabulary& other) const { return bytes_ == other.bytes_; }

 private:
  std::string bytes_;
};

/// The draw that fixes the training order: uniform in [0, bound).
int64_t sample_index(int64_t seed, int64_t step, int64_t index_in_global_batch, int64_t bound);

/// Throws Failure if a file of `train` is in `validation`, too, or, where its tail validates
/// (`fraction` > 0, no validation files), in `train` twice, under any name: the validation loss
/// would be of training data.
void check_disjoint(std::span<const std::string> train, std::span<const std::string> validation,
                    double fraction);

class TokenDataset {
 public:
  struct Options {
    int64_t context = 1;     ///< the split must hold at least context + 1 tokens
    int64_t vocabulary = 0;  ///< of kind "tokens": upper bound of all tokens; 0: look at them all
    const Vocabulary* characters =
        nullptr;  ///< of kind "chars": use this one instead of the data's
    /// Of kind "tokens": encodes texts, with its begin and end tokens; null: texts are errors.
    const Tokenizer* tokenizer = nullptr;
  };
  /// Throws Failure for missing, empty or unreadable files, and text shorter than context + 1.
  static TokenDataset open(const DataConfig& data, Split split, const Options& options);

  int64_t size() const;  ///< tokens in the split
  int64_t vocabulary() const;
  /// Empty for kind "tokens".
  const Vocabulary& characters() const;
  /// out[i] = token offset + i. Throws Failure on a token outside the vocabulary, naming file and
  /// place.
  void read(int64_t offset, std::span<int32_t> out) const;

  /// Where a training window of context + 1 tokens starts.
  int64_t window_start(int64_t seed, int64_t step, int64_t index_in_global_batch,
                       int64_t context) const {
    return sample_index(seed, step, index_in_global_batch, size() - context);
  }
  /// Evaluation windows of context + 1 tokens: window i starts at i context.
  int64_t evaluation_windows(int64_t context) const { return (size() - 1) / context; }

 private:
  struct State;
  explicit TokenDataset(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace espalier::io
