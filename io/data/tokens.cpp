#include "io/data/tokens.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>

#include "io/data/token_format.h"
#include "io/files/folders.h"
#include "io/files/mapped_file.h"
#include "io/tokenizer/tokenizer.h"
#include "src/core/error.h"
#include "src/core/rng.h"

namespace espalier::io {
namespace {

template <class Number>
void copy_numbers(const uint8_t* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Number number;  // unaligned in the file, perhaps
    std::memcpy(&number, from + i * sizeof(Number), sizeof(Number));
    out[i] = static_cast<int32_t>(number);
  }
}

[[noreturn]] void refuse_text(const std::string& path) {
  const std::filesystem::path tokens = std::filesystem::path(path).replace_extension(".bin");
  fail(
      "{} is a text (a token file is named *.bin or has a note {}), and data of kind \"tokens\" "
      "are token files; make one with `espalier data tokenize {} --tokenizer TOKENIZER -o {}`, or "
      "rename the file to *.bin if it holds tokens",
      path, note_of(path), path, tokens.string());
}

/// Files of unsigned little-endian numbers of 1, 2 or 4 bytes, and encoded texts, one after the
/// other, as one sequence; the dataset cuts it into splits and gives it a vocabulary.
class TokenFiles {
 public:
  /// `data.kind` and `data.token_type` say what the files hold. `tokenizer`: as of
  /// TokenDataset::Options.
  TokenFiles(const DataConfig& data, std::span<const std::string> paths,
             const Tokenizer* tokenizer);

  int64_t size() const { return size_; }
  /// A number above 2^31 - 1 comes out negative.
  void read(int64_t offset, std::span<int32_t> out) const;
  /// Sets seen[b] for every byte value b in the files.
  void mark_bytes(std::span<bool, 256> seen) const;
  int64_t largest() const;
  /// "FILE, token 17"
  std::string place(int64_t offset) const;

 private:
  struct Segment {
    MappedFile file;
    std::vector<int32_t> encoded{};  ///< of a text
    size_t header = 0;               ///< bytes before the first token
    int width = 1;                   ///< bytes a token
    int64_t begin = 0;               ///< of the sequence
    int64_t end = 0;
  };
  const Segment& segment_at(int64_t offset) const;
  std::vector<Segment> segments_;
  int64_t size_ = 0;
};

TokenFiles::TokenFiles(const DataConfig& data, std::span<const std::string> paths,
                       const Tokenizer* tokenizer) {
  for (const std::string& path : paths) {
    Segment segment{.file = MappedFile(path)};
    const std::span<const uint8_t> content = segment.file.bytes();
    const bool is_text = data.kind == "tokens" && !is_token_file(path);
    if (is_text) {
      check_no_container(path, content);
    }
    if (is_text && tokenizer == nullptr) {
      refuse_text(path);
    }
    if (is_text) {
      segment.encoded =
          tokenizer->encode({reinterpret_cast<const char*>(content.data()), content.size()});
    }
    const TokenLayout layout = data.kind != "tokens" ? TokenLayout{}
                               : is_text             ? TokenLayout{.width = 4}
                                                     : token_layout(path, content, data);
    const size_t bytes =
        is_text ? segment.encoded.size() * sizeof(int32_t) : content.size() - layout.header;
    check(bytes % static_cast<size_t>(layout.width) == 0,
          "data file {} has {} bytes, no multiple of the {} bytes of a token; is data.token_type "
          "right?",
          path, bytes, layout.width);
    segment.header = layout.header;
    segment.width = layout.width;
    segment.begin = size_;
    size_ += static_cast<int64_t>(bytes) / layout.width;
    segment.end = size_;
    segments_.push_back(std::move(segment));
  }
}

const TokenFiles::Segment& TokenFiles::segment_at(int64_t offset) const {
  require(offset >= 0 && offset < size_, "a token lies within the data", offset, size_);
  return *std::ranges::upper_bound(segments_, offset, {}, &Segment::end);
}

void TokenFiles::read(int64_t offset, std::span<int32_t> out) const {
  while (!out.empty()) {
    const Segment& segment = segment_at(offset);
    const auto part =
        static_cast<size_t>(std::min(segment.end - offset, static_cast<int64_t>(out.size())));
    const uint8_t* all = segment.encoded.empty()
                             ? segment.file.bytes().data() + segment.header
                             : reinterpret_cast<const uint8_t*>(segment.encoded.data());
    const uint8_t* from =
        all + static_cast<size_t>(offset - segment.begin) * static_cast<size_t>(segment.width);
    if (segment.width == 1) {
      copy_numbers<uint8_t>(from, out.first(part));
    } else if (segment.width == 2) {
      copy_numbers<uint16_t>(from, out.first(part));
    } else {
      copy_numbers<uint32_t>(from, out.first(part));
    }
    out = out.subspan(part);
    offset += static_cast<int64_t>(part);
  }
}

void TokenFiles::mark_bytes(std::span<bool, 256> seen) const {
  for (const Segment& segment : segments_) {
    for (const uint8_t byte : segment.file.bytes()) {
      seen[byte] = true;
    }
  }
}

int64_t TokenFiles::largest() const {
  std::vector<int32_t> chunk(static_cast<size_t>(std::min<int64_t>(size_, 1 << 16)));
  uint32_t largest = 0;
  for (int64_t at = 0; at < size_; at += static_cast<int64_t>(chunk.size())) {
    const auto part = std::min(size_ - at, static_cast<int64_t>(chunk.size()));
    const std::span<int32_t> tokens = std::span(chunk).first(static_cast<size_t>(part));
    read(at, tokens);
    for (const int32_t token : tokens) {
      largest = std::max(largest, static_cast<uint32_t>(token));
    }
  }
  return largest;
}

std::string TokenFiles::place(int64_t offset) const {
  const Segment& segment = segment_at(offset);
  return fmt::format("{}, token {}", segment.file.path().string(), offset - segment.begin);
}

std::string shown(unsigned char byte) {
  return std::isprint(byte) != 0 ? fmt::format("'{}' (0x{:02x})", static_cast<char>(byte), byte)
                                 : fmt::format("0x{:02x}", byte);
}

bool byte_less(char a, char b) {
  return static_cast<unsigned char>(a) < static_cast<unsigned char>(b);
}

}  // namespace

Vocabulary::Vocabulary(std::string bytes) : bytes_(std::move(bytes)) {
  std::ranges::sort(bytes_, byte_less);
  bytes_.erase(std::unique(bytes_.begin(), bytes_.end()), bytes_.end());
}

Vocabulary Vocabulary::all_bytes() {
  std::string bytes;
  for (int b = 0; b < 256; ++b) {
    bytes += static_cast<char>(b);
  }
  return Vocabulary(bytes);
}

std::string Vocabulary::text() const {
  std::string out;
  for (const char byte : bytes_) {
    out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return out;
}

Vocabulary Vocabulary::from_text(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned char byte = 0;
    std::from_chars(text.data() + i, text.data() + i + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  Vocabulary out(bytes);
  check(out.text() == text, "\"{}\" is no vocabulary: expected two hex digits a byte, ascending",
        text);
  return out;
}

int32_t Vocabulary::token(unsigned char byte) const {
  const auto at = std::ranges::lower_bound(bytes_, static_cast<char>(byte), byte_less);
  const bool found = at != bytes_.end() && static_cast<unsigned char>(*at) == byte;
  return found ? static_cast<int32_t>(at - bytes_.begin()) : -1;
}

std::vector<int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<int32_t> out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    out.push_back(token(byte));
    check(out.back() >= 0, "character {} at byte {} of the text is not in the vocabulary of {}",
          shown(byte), i, size());
  }
  return out;
}

std::string Vocabulary::decode(std::span<const int32_t> tokens) const {
  std::string out;
  for (const int32_t token : tokens) {
    require(token >= 0 && token < size(), "a token lies in the vocabulary", token, size());
    out += bytes_[static_cast<size_t>(token)];
  }
  return out;
}

bool is_token_file(const std::string& path) {
  return path.ends_with(".bin") || path_exists(note_of(path));
}

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

Vocabulary characters_of(const DataConfig& data) {
  std::array<bool, 256> seen{};
  TokenFiles(data, data.train, nullptr).mark_bytes(seen);
  TokenFiles(data, data.validation, nullptr).mark_bytes(seen);
  std::string bytes;
  for (size_t b = 0; b < seen.size(); ++b) {
    if (seen[b]) {
      bytes += static_cast<char>(b);
    }
  }
  return Vocabulary(bytes);
}

}  // namespace

void check_disjoint(std::span<const std::string> train, std::span<const std::string> validation,
                    double fraction) {
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code missing;  // then opening it says so
    return std::filesystem::equivalent(a, b, missing) && !missing;
  };
  for (const std::string& a : train) {
    for (const std::string& b : validation) {
      check(!same(a, b),
            "{} is in data.train and in data.validation; leave data.validation empty to keep the "
            "last part of it for validation",
            a);
    }
  }
  for (size_t i = 0; i < train.size() && validation.empty() && fraction > 0; ++i) {
    for (size_t j = 0; j < i; ++j) {
      check(!same(train[i], train[j]),
            "{} is in data.train twice, and the last part of data.train is for validation: name it "
            "once, or name other files in data.validation",
            train[i]);
    }
  }
}

TokenDataset TokenDataset::open(const DataConfig& data, Split split, const Options& options) {
  check(data.kind != "images",
        "data.kind = \"images\" holds no tokens; set data.kind to \"bytes\", \"chars\" or "
        "\"tokens\"");
  check(!data.train.empty(), "data.train is empty; name at least one file");
  check_disjoint(data.train, data.validation, data.validation_fraction);
  const bool own_files = !data.validation.empty();
  const bool validation = split == Split::validation;
  auto state = std::make_shared<State>(
      State{.files = TokenFiles(data, validation && own_files ? data.validation : data.train,
                                options.tokenizer),
            .characters = {}});
  const int64_t all = state->files.size();
  const auto tail =
      own_files
          ? int64_t{0}
          : static_cast<int64_t>(std::floor(static_cast<double>(all) * data.validation_fraction));
  state->begin = validation && !own_files ? all - tail : 0;
  state->end = validation ? all : all - tail;

  if (data.kind == "tokens") {
    state->vocabulary =
        options.vocabulary > 0
            ? options.vocabulary
            : 1 + std::max(TokenFiles(data, data.train, options.tokenizer).largest(),
                           TokenFiles(data, data.validation, options.tokenizer).largest());
    constexpr int64_t kMax = 1 << 24;  // that of model.vocabulary
    check(
        state->vocabulary <= kMax,
        "the largest token of {} is {}, and a vocabulary has at most {}; is data.token_type right?",
        data.train[0], state->vocabulary - 1, kMax);
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
            "{}: character 0x{:02x} is not in the vocabulary of {} characters that the model was "
            "trained with; remove it from the text, or train a new model with this text",
            place, raw, state_->vocabulary);
      fail(
          "{}: token {} is outside the vocabulary of {}; set model.vocabulary higher, or check "
          "data.token_type",
          place, static_cast<uint32_t>(raw), state_->vocabulary);
    }
  }
}

}  // namespace espalier::io
