#include "io/data/tokens.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "io/data/token_files.h"
#include "src/core/error.h"
#include "src/core/rng.h"

namespace espalier::io {

std::string_view name_of(Split split) { return split == Split::train ? "train" : "validation"; }

int64_t sample_index(int64_t seed, int64_t step, int64_t index_in_global_batch, int64_t bound) {
  require(bound > 0, "there is something to draw from", bound);
  constexpr uint64_t kDataOrder = 0x64617461;  // a stream of its own: other draws use other numbers
  const Philox draw =
      philox(mix(static_cast<uint64_t>(seed), kDataOrder), static_cast<uint64_t>(step),
             static_cast<uint64_t>(index_in_global_batch));
  const uint64_t bits = uint64_t{draw[1]} << 32 | draw[0];
  return static_cast<int64_t>(below(bits, static_cast<uint64_t>(bound)));
}

struct TokenDataset::State {
  TokenFiles files;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t vocabulary = 0;
  Vocabulary characters;
  std::array<int32_t, 256> token_of_byte{};  ///< of kind "chars"; -1: not in the vocabulary
  bool chars = false;
};

namespace {

/// The same file for training and validation would make the validation loss a lie.
void check_disjoint(const DataConfig& data) {
  for (const std::string& a : data.train) {
    for (const std::string& b : data.validation) {
      std::error_code missing;  // then opening it says so
      check(!std::filesystem::equivalent(a, b, missing) || missing,
            "{} is in data.train and in data.validation; leave data.validation empty to keep the "
            "last part of it for validation",
            a);
    }
  }
}

Vocabulary characters_of(const DataConfig& data) {
  std::array<bool, 256> seen{};
  TokenFiles(data, data.train).mark_bytes(seen);
  TokenFiles(data, data.validation).mark_bytes(seen);
  std::string bytes;
  for (size_t b = 0; b < seen.size(); ++b) {
    if (seen[b]) {
      bytes += static_cast<char>(b);
    }
  }
  return Vocabulary(bytes);
}

}  // namespace

TokenDataset::TokenDataset(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenDataset::TokenDataset(TokenDataset&&) noexcept = default;
TokenDataset& TokenDataset::operator=(TokenDataset&&) noexcept = default;
TokenDataset::~TokenDataset() = default;

TokenDataset TokenDataset::open(const DataConfig& data, Split split, const Options& options) {
  check(data.kind != "images", "data.kind = \"images\" holds no tokens");
  check(!data.train.empty(), "data.train is empty; name at least one file");
  check_disjoint(data);
  const bool own_files = !data.validation.empty();
  const bool validation = split == Split::validation;
  auto state = std::make_unique<State>(
      State{.files = TokenFiles(data, validation && own_files ? data.validation : data.train),
            .characters = {}});
  const int64_t all = state->files.size();
  const auto tail =
      own_files
          ? int64_t{0}
          : static_cast<int64_t>(std::floor(static_cast<double>(all) * data.validation_fraction));
  state->begin = validation && !own_files ? all - tail : 0;
  state->end = validation ? all : all - tail;

  if (data.kind == "tokens") {
    state->vocabulary = options.vocabulary > 0
                            ? options.vocabulary
                            : 1 + std::max(TokenFiles(data, data.train).largest(),
                                           TokenFiles(data, data.validation).largest());
  } else {
    state->chars = data.kind == "chars";
    if (!state->chars) {
      state->characters = Vocabulary::all_bytes();
    } else {
      state->characters = options.characters != nullptr ? *options.characters : characters_of(data);
    }
    state->vocabulary = state->characters.size();
    for (size_t b = 0; b < 256; ++b) {
      state->token_of_byte[b] = state->characters.token(static_cast<unsigned char>(b));
    }
  }
  const int64_t size = state->end - state->begin;
  check(size > options.context,
        "the {} data has {} tokens (of {} in {}{}), one sequence needs model.context + 1 = {}; use "
        "more text, a smaller model.context or another data.validation_fraction",
        name_of(split), size, all, validation && own_files ? data.validation[0] : data.train[0],
        (validation && own_files ? data.validation : data.train).size() > 1 ? ", …" : "",
        options.context + 1);
  return TokenDataset(std::move(state));
}

int64_t TokenDataset::size() const { return state_->end - state_->begin; }
int64_t TokenDataset::vocabulary() const { return state_->vocabulary; }
const Vocabulary& TokenDataset::characters() const { return state_->characters; }

void TokenDataset::read(int64_t offset, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  require(offset >= 0 && count <= size() && offset <= size() - count,
          "a read stays within the split", offset, count, size());
  const int64_t first = state_->begin + offset;
  state_->files.read(first, out);
  for (size_t i = 0; i < out.size(); ++i) {
    const int32_t raw = out[i];
    if (state_->chars) {
      out[i] = state_->token_of_byte[static_cast<size_t>(raw)];
    }
    if (out[i] < 0 || out[i] >= state_->vocabulary) [[unlikely]] {
      const std::string place = state_->files.place(first + static_cast<int64_t>(i));
      check(!state_->chars,
            "{}: character 0x{:02x} is not in the vocabulary of {} characters that this model was "
            "trained with",
            place, raw, state_->vocabulary);
      fail(
          "{}: token {} is outside the vocabulary of {}; set model.vocabulary higher, or check "
          "data.token_type",
          place, static_cast<uint32_t>(raw), state_->vocabulary);
    }
  }
}

}  // namespace espalier::io
