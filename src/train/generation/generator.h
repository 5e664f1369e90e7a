#pragma once
// Predicts the next token of several sequences with a key-value cache: prefill computes a prompt in
// one pass, then each decode step computes one new token of every sequence.
//
//   Generator generator(config, problem, stage, {.sequences = prompts.size()});
//   generator.start(prompts);
//   … generator.logits(b) …                    choose a token for each sequence
//   generator.append(chosen);                  kEnded: nothing more for this one
//
// The network sees at most the last `context` tokens. A sequence that has filled the context is
// prefilled again for each further token, as without a cache, because the positions of all its
// tokens change; that costs a whole pass per token.
//
// On CPUs the logits of a sequence have the same bits whatever the other sequences are: each prompt
// has a pass of its own, and products of decode steps compute each row alone (operation few_rows).
// Tables of devices use `gemm` and `spmm`, which may round differently.
//
// Cost of a decode step: the bytes of the kept weights, their index and the cache
// (docs/generation.md). Memory: the cache, and a tape for a prompt of `context` tokens.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/model/key_value_cache.h"
#include "src/model/tape.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// With sparse.storage = "auto": stores weights densely that keep so many elements (16 bits: a
/// third) that dense products with few rows are faster. Call it before weights are loaded.
void choose_generation_storages(const io::Config& config, sparse::Store& store);

class Generator {
 public:
  struct Options {
    int64_t sequences = 1;
    /// Of a sequence, at most, with its prompt: more are predicted from the last ones, as beyond
    /// the context. 0, and more than that: the context.
    int64_t tokens = 0;
  };
  /// `stage`: the whole network with its weights, not for training; it outlives the generator. The
  /// constructor decodes one token, which makes the lists of columns that sparse products read.
  Generator(const io::Config& config, const ProblemShape& problem, Stage& stage,
            const Options& options);

  int64_t sequences() const { return cache_.sequences(); }
  /// Tokens that a prediction may depend on.
  int64_t context() const { return context_; }

  /// Reads the prompts, one for each sequence: 1 to context() tokens below the vocabulary. Throws
  /// Failure that names the sequence otherwise.
  void start(std::span<const std::vector<int32_t>> prompts);

  static constexpr int32_t kEnded = -1;
  /// Appends a token to each sequence, and predicts the next ones. A sequence with kEnded is not
  /// read again; its logits are undefined from then on.
  void append(std::span<const int32_t> tokens);

  /// Of the next token of a sequence: fp32 [classes], valid until the next call.
  std::span<const float> logits(int64_t sequence) const;
  /// All tokens of a sequence, with its prompt.
  std::span<const int32_t> tokens(int64_t sequence) const {
    return history_[static_cast<size_t>(sequence)];
  }

 private:
  struct Inputs {
    Buffer tokens, positions, first, counts, lengths;
  };
  Generator(const ProblemShape& problem, Stage& stage, const Options& options, size_t tape_bytes);
  /// With `tokens` from 1 to the context.
  static Options within(const Options& options, const ProblemShape& problem);
  static size_t measure(const io::Config& config, const ProblemShape& problem, bool on_device,
                        const Options& options);
  void write(const Tensor& to, std::span<const int32_t> numbers);
  void read_prompt(int64_t sequence, std::span<const int32_t> tokens);
  void read_tokens(std::span<const int32_t> tokens, std::span<const int32_t> positions);
  model::Pass make_pass(model::CachedPass& cached, const Shape& shape);
  void fetch(const Tensor& logits, int64_t first_sequence);
  bool dry() const { return stage_.stream().arena().dry(); }

  int64_t classes_, context_;
  Stage& stage_;
  model::KeyValueCache cache_;
  model::Tape tape_;
  Inputs inputs_;
  std::vector<std::vector<int32_t>> history_;
  std::vector<int64_t> cached_;  ///< tokens of each sequence in the cache
  std::vector<bool> ended_;
  std::vector<float> logits_;  ///< [sequences, classes]
};

}  // namespace espalier::train
