#include "io/tokenizer/sentencepiece_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "io/tokenizer/utf8.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 24;  ///< that of model.vocabulary
constexpr size_t kMaxPieceBytes = 1024;
constexpr size_t kMaxKeyBytes = 1024;         ///< of a text in a character map
constexpr size_t kMaxReplacement = 1024;      ///< bytes
constexpr unsigned kMaxNestedKeys = 32;       ///< Normalizer::kMaxTrieResultsSize
constexpr size_t kMaxNestedUserDefined = 64;  ///< kResultSize in PrefixMatcher::PrefixMatch

template <class... Args>
[[noreturn]] void refuse_file(const std::string& file, fmt::format_string<Args...> fault,
                              Args&&... args) {
  fail("{}: the SentencePiece model {}; download it again", file,
       fmt::format(fault, std::forward<Args>(args)...));
}

bool is_valid_utf8(std::string_view text) {
  std::string repaired;
  return valid_utf8(text, repaired).data() == text.data();
}

/// The fields of a message of a protocol buffer, in the order of the file.
class WireReader {
 public:
  WireReader(std::string_view message, const std::string& file) : rest_(message), file_(file) {}

  struct Field {
    uint64_t number = 0;
    bool is_bytes = false;
    bool is_fixed32 = false;
    uint64_t value = 0;        ///< of a number
    std::string_view bytes{};  ///< of a text or a message
    std::string_view whole{};  ///< with its tag
  };

  /// False at the end of the message.
  bool next(Field& field) {
    if (rest_.empty()) {
      return false;
    }
    const std::string_view begin = rest_;
    const uint64_t tag = varint();
    field = {.number = tag >> 3U};
    switch (tag & 7U) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.is_bytes = true;
        field.bytes = take(varint());
        break;
      case 5:
        field.is_fixed32 = true;
        field.value = fixed(4);
        break;
      default:
        damaged();
    }
    if (field.number == 0) {
      damaged();
    }
    field.whole = begin.substr(0, begin.size() - rest_.size());
    return true;
  }

  std::string_view message(const Field& field) const {
    if (!field.is_bytes) {
      damaged();
    }
    return field.bytes;
  }
  uint64_t number(const Field& field) const {
    if (field.is_bytes) {
      damaged();
    }
    return field.value;
  }

 private:
  [[noreturn]] void damaged() const { refuse_file(file_, "is cut off or damaged"); }

  std::string_view take(uint64_t bytes) {
    if (bytes > rest_.size()) {
      damaged();
    }
    const std::string_view out = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return out;
  }
  uint64_t varint() {
    constexpr unsigned kMostBits = 63;
    uint64_t value = 0;
    for (unsigned shift = 0; shift <= kMostBits; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    damaged();
  }
  uint64_t fixed(size_t bytes) {
    uint64_t value = 0;
    const std::string_view from = take(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      value |= uint64_t{static_cast<unsigned char>(from[i])} << 8 * i;
    }
    return value;
  }

  std::string_view rest_;
  const std::string& file_;
};

SentencePieceFile::Piece read_piece(std::string_view message, size_t id, const std::string& file) {
  SentencePieceFile::Piece piece;
  WireReader reader(message, file);
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == 1) {
      piece.text = reader.message(field);
    } else if (field.number == 2 && field.is_fixed32) {  // the library ignores other types
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(reader.number(field)));
    } else if (field.number == 3) {
      const uint64_t kind = reader.number(field);
      if (kind < 1 || kind > 6) {
        refuse_file(file, "has a piece {} of the unknown type {}", id, kind);
      }
      piece.kind = static_cast<SentencePieceFile::Kind>(kind);
    }
  }
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes) {
    refuse_file(file, "has a piece {} of {} bytes; expected 1 to {}", id, piece.text.size(),
                kMaxPieceBytes);
  }
  if (piece.text.find('\0') != std::string_view::npos || !is_valid_utf8(piece.text)) {
    refuse_file(file, "has a piece {} that is no text in UTF-8", id);
  }
  if (!std::isfinite(piece.score)) {
    refuse_file(file, "has a piece {} whose score is no finite number", id);
  }
  return piece;
}

void read_trainer(std::string_view message, SentencePieceFile& out, const std::string& file) {
  WireReader reader(message, file);
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == 3) {
      const uint64_t model = reader.number(field);
      if (model < 1 || model > 4) {
        refuse_file(file, "has the unknown model_type {}", model);
      }
      out.model = static_cast<SentencePieceFile::Model>(model);
    } else if (field.number == 24) {
      out.space_is_suffix = reader.number(field) != 0;
    } else if (field.number == 35) {
      out.byte_fallback = reader.number(field) != 0;
    }
  }
}

/// The map of a NormalizerSpec, and its flags unless `out` is null.
CharacterMap read_normalizer(std::string_view message, SentencePieceFile* out,
                             const std::string& file, bool& has_map) {
  CharacterMap map;
  WireReader reader(message, file);
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == 2) {
      const std::string_view blob = reader.message(field);
      has_map = !blob.empty();
      map = has_map ? CharacterMap::read(blob, file) : CharacterMap();
    } else if (field.number >= 3 && field.number <= 5 && out != nullptr) {
      (field.number == 3   ? out->begins_with_space
       : field.number == 4 ? out->removes_spaces
                           : out->escapes_spaces) = reader.number(field) != 0;
    }
  }
  return map;
}

/// The library keeps at most 64 user-defined pieces that match at one place.
void check_user_defined(const SentencePieceFile& model, const std::string& file) {
  std::vector<std::string_view> texts;
  for (const SentencePieceFile::Piece& piece : model.pieces) {
    if (piece.kind == SentencePieceFile::Kind::user_defined) {
      texts.push_back(piece.text);
    }
  }
  std::ranges::sort(texts);
  std::vector<std::string_view> nested;
  for (const std::string_view text : texts) {
    while (!nested.empty() && !text.starts_with(nested.back())) {
      nested.pop_back();
    }
    nested.push_back(text);
    if (nested.size() > kMaxNestedUserDefined) {
      refuse_file(file, "has {} user-defined pieces that begin alike; expected at most {}",
                  nested.size(), kMaxNestedUserDefined);
    }
  }
}

}  // namespace

uint32_t CharacterMap::unit(size_t at) const {
  uint32_t value = 0;
  for (unsigned byte = 0; byte < 4; ++byte) {
    value |= uint32_t{static_cast<unsigned char>(units_[4 * at + byte])} << 8 * byte;
  }
  return value;
}

// A unit of Darts-clone: bits 0 to 7 label, 8 whether it is the end of a key, 9 whether the offset
// is in blocks of 256, 10 to 30 offset; of a unit with bit 31, bits 0 to 30 are a key's value.
namespace {
bool ends_key(uint32_t unit) { return (unit >> 8U & 1U) != 0; }
uint32_t label_of(uint32_t unit) { return unit & (1U << 31U | 0xffU); }
uint32_t offset_of(uint32_t unit) { return unit >> 10U << ((unit & 1U << 9U) >> 6U); }
uint32_t value_of(uint32_t unit) { return unit & ((1U << 31U) - 1U); }
}  // namespace

std::string_view CharacterMap::replacement_of(uint32_t unit) const {
  const std::string_view from = replacements_.substr(value_of(unit));
  return from.substr(0, from.find('\0'));
}

CharacterMap CharacterMap::read(std::string_view blob, const std::string& file) {
  constexpr size_t kHeader = 4;
  uint32_t bytes = 0;
  for (size_t i = 0; i < std::min(kHeader, blob.size()); ++i) {
    bytes |= uint32_t{static_cast<unsigned char>(blob[i])} << 8 * i;
  }
  if (blob.size() <= kHeader || bytes % 4 != 0 || bytes == 0 || bytes >= blob.size() - kHeader ||
      blob.back() != '\0') {
    refuse_file(file, "has a damaged map of characters");
  }
  CharacterMap map;
  map.units_ = blob.substr(kHeader, bytes);
  map.replacements_ = blob.substr(kHeader + bytes);
  map.check_array(file);
  return map;
}

/// Visits each state of the automaton once. A state is the place to which the next byte is added
/// (by xor); behind all 256 bytes there must be units, because a search reads before it compares.
void CharacterMap::check_array(const std::string& file) {
  const size_t count = units_.size() / 4;
  const auto damaged = [&](bool ok) {
    if (!ok) {
      refuse_file(file, "has a damaged map of characters");
    }
  };
  constexpr uint16_t kUnseen = std::numeric_limits<uint16_t>::max();
  constexpr uint16_t kOpen = kUnseen - 1;
  struct State {
    uint16_t longest = kUnseen;  ///< bytes that follow, at most
    uint16_t ends = 0;           ///< keys that end on the way
  };
  std::vector<State> states(count);
  struct Visit {
    uint32_t state = 0;
    unsigned byte = 0;
    State found{.longest = 0};
  };
  std::vector<Visit> stack;
  const auto enter = [&](uint32_t state) {
    damaged((state | 0xffU) < count && stack.size() < kMaxKeyBytes);
    states[state].longest = kOpen;
    stack.push_back({.state = state});
  };
  const uint32_t root = offset_of(unit(0));
  enter(root);
  while (!stack.empty()) {
    Visit& visit = stack.back();
    if (visit.byte == 256) {
      states[visit.state] = visit.found;
      stack.pop_back();
      continue;
    }
    const uint32_t at = visit.state ^ visit.byte;
    const uint32_t found = unit(at);
    if (label_of(found) != visit.byte) {
      ++visit.byte;
      continue;
    }
    const uint32_t next = at ^ offset_of(found);
    damaged(next < count);
    if (states[next].longest == kUnseen) {
      enter(next);  // `visit` is invalid
      continue;
    }
    damaged(states[next].longest != kOpen);  // a cycle
    if (ends_key(found)) {
      const uint32_t value = unit(next);
      damaged(value_of(value) < replacements_.size());
      const std::string_view replacement = replacement_of(value);
      damaged(replacement.size() <= kMaxReplacement && is_valid_utf8(replacement));
    }
    visit.found.longest =
        std::max(visit.found.longest, static_cast<uint16_t>(states[next].longest + 1));
    visit.found.ends = std::max(
        visit.found.ends, static_cast<uint16_t>(states[next].ends + (ends_key(found) ? 1 : 0)));
    damaged(visit.found.ends <= kMaxNestedKeys && visit.found.longest <= kMaxKeyBytes);
    if (visit.state == root) {
      begins_[visit.byte] = true;
    }
    ++visit.byte;
  }
  longest_ = states[root].longest;
}

size_t CharacterMap::match(std::string_view text, std::string_view& replacement) const {
  if (units_.empty()) {
    return 0;
  }
  size_t longest = 0;
  uint32_t at = offset_of(unit(0));
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    const uint32_t found = unit(at);
    if (label_of(found) != byte) {
      break;
    }
    at ^= offset_of(found);
    if (ends_key(found)) {
      longest = i + 1;
      replacement = replacement_of(unit(at));
    }
  }
  return longest;
}

/// A model begins with its first piece: the tag of `pieces`, a length, the tag of `piece`. JSON may
/// begin with the same bytes (white space and a brace).
bool is_sentencepiece(std::string_view bytes) {
  constexpr std::string_view kWhiteSpace = " \t\r\n";
  constexpr char kTag = '\n';
  const size_t brace = bytes.find_first_not_of(kWhiteSpace);
  if (brace != std::string_view::npos && bytes[brace] == '{') {
    const size_t next = bytes.find_first_not_of(kWhiteSpace, brace + 1);
    if (next != std::string_view::npos && (bytes[next] == '"' || bytes[next] == '}')) {
      return false;
    }
  }
  size_t at = 1;
  while (at < bytes.size() && at < 5 && static_cast<unsigned char>(bytes[at]) >= 0x80) {
    ++at;
  }
  return at + 1 < bytes.size() && bytes[0] == kTag && bytes[at + 1] == kTag;
}

SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& file) {
  enum Number : uint8_t { pieces = 1, trainer, normalizer, self_test, denormalizer };
  SentencePieceFile out;
  WireReader reader(bytes, file);
  out.for_library.reserve(bytes.size());
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == pieces) {
      out.pieces.push_back(read_piece(reader.message(field), out.pieces.size(), file));
    } else if (field.number == trainer) {
      read_trainer(reader.message(field), out, file);
    } else if (field.number == normalizer) {
      bool has_map = false;
      CharacterMap map = read_normalizer(reader.message(field), &out, file, has_map);
      out.characters = has_map ? map : out.characters;  // as messages are merged
    } else if (field.number == denormalizer) {
      read_normalizer(reader.message(field), nullptr, file, out.has_denormalizer);
    }
    if (field.number != self_test) {
      out.for_library += field.whole;
    }
  }
  if (out.pieces.empty() || out.pieces.size() > kMaxPieces) {
    refuse_file(file, "has {} pieces; expected 1 to {}", out.pieces.size(), kMaxPieces);
  }
  check(out.model != SentencePieceFile::Model::word,
        "{}: model_type WORD is not supported; supported: UNIGRAM, BPE, CHAR", file);
  check_user_defined(out, file);
  return out;
}

}  // namespace espalier::io
