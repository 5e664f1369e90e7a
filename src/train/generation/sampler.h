#pragma once
// Draws tokens from logits, and finds the end of a generated text.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace espalier::train {

struct Sampling {
  double temperature = 0.8;  ///< 0: always the most likely token; 1: the network's probabilities
  int64_t top_k = 0;         ///< draws among the K most likely tokens; 0: all
  double top_p = 1;          ///< … among the fewest most likely ones whose probabilities reach P
};

/// Draws from softmax(logits / temperature), restricted first to the top k, then, of those, to the
/// top p. `uniform` in [0, 1) decides. Equal logits are ordered by token, the lower first, which
/// decides ties of temperature 0, top k and top p. Logits are finite. Cost: one exponential per
/// token; a sort of the candidates with top_k or top_p.
int32_t draw(std::span<const float> logits, const Sampling& how, double uniform);

/// The random numbers of one sequence: a pure function of the seed, its prompt and the number of
/// equal prompts before it, so a text does not depend on the other prompts.
class SequenceRandom {
 public:
  SequenceRandom(uint64_t seed, std::span<const int32_t> prompt, int64_t equal_before);
  /// Uniform in [0, 1), 53 bits, for token `number`.
  double uniform(int64_t number) const;

 private:
  uint64_t key_;
};

/// A text that grows by pieces, up to a stop string, which may lie across pieces.
class GrowingText {
 public:
  explicit GrowingText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Appends a piece; returns true if the text has ended. The stop string is not part of the text.
  bool add(const std::string& piece);
  /// The text that no later piece can remove and that `take` has not returned yet: whole UTF-8
  /// characters, without a possible beginning of a stop string. After the end, or with `all`, the
  /// rest.
  std::string take(bool all = false);

  bool ended() const { return ended_; }
  const std::string& text() const { return text_; }

 private:
  std::vector<std::string> stops_;
  std::string text_;
  size_t taken_ = 0;
  bool ended_ = false;
};

}  // namespace espalier::train
