#include "io/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

constexpr int64_t kMaxIds = int64_t{1} << 24;  ///< that of model.vocabulary
constexpr uint64_t kNoPair = UINT64_MAX;
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr std::string_view kSeparator = "\xe2\x96\x81";  ///< U+2581, "▁"
constexpr char32_t kSeparatorPoint = 0x2581;
/// Words of more symbols are merged with a heap.
constexpr size_t kFewSymbols = 40;

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32U | static_cast<uint32_t>(right);
}

uint64_t mixed_bits(uint64_t key) {
  key *= 0x9e3779b97f4a7c15U;
  return key ^ key >> 32U;
}

/// Printable characters of Latin-1 stand for themselves, others for U+0100 and up, in order.
struct ByteAlphabet {
  std::array<std::string, 256> characters;
  std::array<int16_t, 0x144> bytes{};  ///< by code point; -1: none

  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      const char32_t point = printable ? byte : next++;
      append_utf8(characters[byte], point);
      bytes[point] = static_cast<int16_t>(byte);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace

const std::string& byte_character(unsigned char byte) { return byte_alphabet().characters[byte]; }

bool bytes_of_characters(std::string_view token, std::string& bytes) {
  const ByteAlphabet& alphabet = byte_alphabet();
  bytes.clear();
  for (size_t at = 0; at < token.size(); at += utf8_bytes(token[at])) {
    const char32_t point = code_point(token, at);
    if (point >= alphabet.bytes.size() || alphabet.bytes[point] < 0) {
      return false;
    }
    bytes += static_cast<char>(alphabet.bytes[point]);
  }
  return true;
}

Bpe Bpe::read(const JsonField& model, bool bytes) {
  const JsonField type = model.maybe("type");  // old files have none
  if (!type.is_null() && type.text() != "BPE") {
    model.refuse_type("BPE");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonField mark = model.maybe(name);
    if (!mark.is_null() && !mark.text().empty()) {
      mark.refuse("\"{}\" is not supported; supported: none", JsonField::printable(mark.text()));
    }
  }
  if (const JsonField dropout = model.maybe("dropout"); !dropout.is_null()) {
    if (!dropout.value().is_number() || dropout.value().get<double>() != 0) {
      dropout.refuse("is not supported: equal texts would get different tokens; set it to null");
    }
  }
  Bpe bpe;
  bpe.file_ = model.file();
  bpe.bytes_ = bytes;
  bpe.ignore_merges_ = model.maybe("ignore_merges").flag(false);
  bpe.byte_fallback_ = model.maybe("byte_fallback").flag(false);
  bpe.fuse_unknown_ = model.maybe("fuse_unk").flag(false);
  bpe.read_vocabulary(model.at("vocab"));
  if (const JsonField unknown = model.maybe("unk_token"); !unknown.is_null()) {
    bpe.unknown_ = unknown.text();
    bpe.unknown_id_ = bpe.id_of(bpe.unknown_);
  }
  bpe.read_merges(model.at("merges"));
  bpe.find_symbols();
  return bpe;
}

void Bpe::read_vocabulary(const JsonField& vocabulary) {
  if (!vocabulary.value().is_object()) {
    vocabulary.refuse("is no object of tokens and ids");
  }
  tokens_.reserve(vocabulary.value().size());
  for (const auto& [token, id] : vocabulary.value().items()) {
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < uint64_t{kMaxIds};
    if (!fits) {
      vocabulary.refuse("gives the token \"{}\" an id that is no integer from 0 to {}",
                        JsonField::printable(token), kMaxIds - 1);
    }
    const auto number = id.get<int32_t>();
    const auto [known, is_new] =
        index_of_.try_emplace(number, static_cast<uint32_t>(tokens_.size()));
    if (!is_new) {
      vocabulary.refuse("gives the id {} to \"{}\" and to \"{}\"; an id has one token", number,
                        JsonField::printable(tokens_[known->second]), JsonField::printable(token));
    }
    tokens_.push_back(token);
    largest_id_ = std::max(largest_id_, number);
  }
  id_of_.reserve(tokens_.size());
  for (const auto& [id, index] : index_of_) {
    id_of_[tokens_[index]] = id;
  }
}

void Bpe::read_merges(const JsonField& merges) {
  if (!merges.value().is_array()) {
    merges.refuse("is no list");
  }
  const size_t count = merges.value().size();
  merges_.assign(std::bit_ceil(std::max<size_t>(2 * count, 2)), Merge{.pair = kNoPair});
  const size_t mask = merges_.size() - 1;
  std::vector<int32_t> merged;
  merged.reserve(count);
  std::string both;
  int32_t rank = 0;
  for (const nlohmann::json& merge : merges.value()) {
    std::string_view left;
    std::string_view right;
    if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    }
    if (left.empty() || right.empty()) {
      merges.refuse(
          "has an element {} that is no pair of tokens: {}; expected \"LEFT RIGHT\" or "
          "[\"LEFT\", \"RIGHT\"]",
          rank, JsonField::printable(merge.dump()));
    }
    both.assign(left);
    both += right;
    const int32_t left_id = id_of(left);
    const int32_t right_id = id_of(right);
    const int32_t both_id = id_of(both);
    if (left_id < 0 || right_id < 0 || both_id < 0) {
      merges.refuse("has an element {} whose token \"{}\" is not in model.vocab", rank,
                    JsonField::printable(left_id < 0    ? left
                                         : right_id < 0 ? right
                                                        : std::string_view(both)));
    }
    const uint64_t pair = pair_key(left_id, right_id);
    size_t at = mixed_bits(pair) & mask;
    while (merges_[at].pair != kNoPair && merges_[at].pair != pair) {
      at = (at + 1) & mask;
    }
    merges_[at] = {.pair = pair, .rank = rank++, .merged = both_id};  // of equal pairs the last
    merged.push_back(both_id);
  }
  find_cuts(merged);
}

void Bpe::find_symbols() {
  ascii_ids_.fill(-1);
  for (const std::string& token : tokens_) {
    if (!token.empty() && token.size() == utf8_bytes(token[0])) {
      const char32_t point = code_point(token, 0);
      (point < 128 ? ascii_ids_[point] : character_ids_[point]) = id_of(token);
    }
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_of(byte_character(static_cast<unsigned char>(byte)));
    fallback_ids_[byte] = id_of(fmt::format("<0x{:02X}>", byte));
  }
  if (bytes_ && ignore_merges_) {
    std::string bytes;
    for (const std::string& token : tokens_) {
      if (bytes_of_characters(token, bytes)) {
        id_of_bytes_[bytes] = id_of(token);
      }
    }
  }
}

/// A cut between x and "▁" changes nothing if both are tokens, so that no unknown character and no
/// fallback bytes are beside it, and no token that a merge makes holds "x▁".
void Bpe::find_cuts(const std::vector<int32_t>& merged) {
  has_separator_ = !bytes_ && id_of(kSeparator) >= 0;
  if (!has_separator_) {
    return;
  }
  cuts_after_ascii_.fill(false);
  for (const std::string& token : tokens_) {
    if (!token.empty() && token.size() == utf8_bytes(token[0]) && token != kSeparator) {
      const char32_t point = code_point(token, 0);
      if (point < 128) {
        cuts_after_ascii_[point] = true;
      } else {
        cuts_after_[point] = true;
      }
    }
  }
  const auto forbid = [this](std::string_view token) {
    for (size_t at = token.find(kSeparator, 1); at != std::string_view::npos;
         at = token.find(kSeparator, at + 1)) {
      size_t before = at - 1;
      while (is_continuation(token[before])) {
        --before;
      }
      const char32_t point = code_point(token, before);
      if (point < 128) {
        cuts_after_ascii_[point] = false;
      } else {
        cuts_after_[point] = false;
      }
    }
  };
  for (const int32_t id : merged) {
    forbid(*token_of(id));
  }
  if (ignore_merges_) {  // a whole word may be any token
    for (const std::string& token : tokens_) {
      forbid(token);
    }
  }
  cuts_after_[kSeparatorPoint] = false;
}

size_t Bpe::cut_after(std::string_view word, size_t from) const {
  if (!has_separator_) {
    return word.size();
  }
  for (size_t at = word.find(kSeparator, from); at != std::string_view::npos;
       at = word.find(kSeparator, at + kSeparator.size())) {
    const auto last = static_cast<unsigned char>(word[at - 1]);
    if (last < 128) {
      if (cuts_after_ascii_[last]) {
        return at;
      }
      continue;
    }
    size_t before = at - 1;
    while (is_continuation(word[before])) {
      --before;
    }
    const auto found = cuts_after_.find(code_point(word, before));
    if (found != cuts_after_.end() && found->second) {
      return at;
    }
  }
  return word.size();
}

int32_t Bpe::id_of(std::string_view token) const {
  const auto found = id_of_.find(token);
  return found == id_of_.end() ? -1 : found->second;
}

const std::string* Bpe::token_of(int32_t id) const {
  const auto found = index_of_.find(id);
  return found == index_of_.end() ? nullptr : &tokens_[found->second];
}

const Bpe::Merge* Bpe::merge_of(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t at = mixed_bits(pair) & mask;; at = (at + 1) & mask) {
    const Merge& merge = merges_[at];
    if (merge.pair == pair) {
      return &merge;
    }
    if (merge.pair == kNoPair) {
      return nullptr;
    }
  }
}

int32_t Bpe::character_id(std::string_view character) const {
  if (character.size() == 1) {
    return ascii_ids_[static_cast<unsigned char>(character[0])];
  }
  const auto found = character_ids_.find(code_point(character, 0));
  return found == character_ids_.end() ? -1 : found->second;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  scratch.cache.append(word, out, [&] { encode_uncached(word, scratch, out); });
}

void Bpe::encode_uncached(std::string_view word, Scratch& scratch,
                          std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    if (bytes_) {
      const auto found = id_of_bytes_.find(std::string(word));
      if (found != id_of_bytes_.end()) {
        out.push_back(found->second);
        return;
      }
    } else if (const int32_t id = id_of(word); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  begin_symbols(word, scratch);
  if (scratch.symbols.size() <= kFewSymbols) {
    merge_few(scratch, out);
  } else {
    merge_many(scratch, out);
  }
}

void Bpe::begin_symbols(std::string_view word, Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  symbols.clear();
  bool unknown_before = false;  // one that is not in `symbols` yet
  const auto add_unknown = [&] {
    if (unknown_before) {
      symbols.push_back({.id = unknown_id_});
      unknown_before = false;
    }
  };
  for (size_t at = 0; at < word.size();) {
    const size_t bytes = bytes_ ? 1 : utf8_bytes(word[at]);
    const int32_t id = bytes_ ? byte_ids_[static_cast<unsigned char>(word[at])]
                              : character_id(word.substr(at, bytes));
    const std::string_view character =
        bytes_ ? std::string_view(byte_character(static_cast<unsigned char>(word[at])))
               : word.substr(at, bytes);
    at += bytes;
    if (id >= 0) {
      add_unknown();
      symbols.push_back({.id = id});
      continue;
    }
    const auto fallback = [this](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
    if (byte_fallback_ &&
        std::ranges::all_of(character, [&](char c) { return fallback(c) >= 0; })) {
      for (const char c : character) {  // before an unknown one, as `tokenizers` does
        symbols.push_back({.id = fallback(c)});
      }
      continue;
    }
    if (unknown_.empty()) {
      continue;
    }
    check(unknown_id_ >= 0,
          "{}: model.unk_token \"{}\" is not in model.vocab, but the text has the character "
          "\"{}\", which is not there either; add it to model.vocab",
          file_, JsonField::printable(unknown_), character);
    if (!fuse_unknown_) {
      add_unknown();
    }
    unknown_before = true;
  }
  add_unknown();
}

void Bpe::pair_up(Scratch& scratch, size_t left, size_t right) const {
  Scratch::Symbol& symbol = scratch.symbols[left];
  const Merge* merge = merge_of(symbol.id, scratch.symbols[right].id);
  symbol.rank = merge == nullptr ? kNoRank : merge->rank;
  symbol.merged = merge == nullptr ? -1 : merge->merged;
}

/// Time quadratic in the number of symbols.
void Bpe::merge_few(Scratch& scratch, std::vector<int32_t>& out) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    pair_up(scratch, i, i + 1);
  }
  while (symbols.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < symbols.size(); ++i) {
      if (symbols[i].rank < symbols[best].rank) {
        best = i;
      }
    }
    if (symbols[best].rank == kNoRank) {
      break;
    }
    symbols[best].id = symbols[best].merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best + 1 < symbols.size()) {
      pair_up(scratch, best, best + 1);
    }
    if (best > 0) {
      pair_up(scratch, best - 1, best);
    }
  }
  for (const Scratch::Symbol& symbol : symbols) {
    out.push_back(symbol.id);
  }
}

/// Time n log n: pairs wait in a heap; one that has changed since it was added is dropped.
void Bpe::merge_many(Scratch& scratch, std::vector<int32_t>& out) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  std::vector<Scratch::Candidate>& heap = scratch.heap;
  require(symbols.size() < size_t{kNoRank}, "a word has less than 2^31 symbols", symbols.size());
  heap.clear();
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto look = [&](int32_t left) {
    pair_up(scratch, static_cast<size_t>(left),
            static_cast<size_t>(symbols[static_cast<size_t>(left)].after));
    const Scratch::Symbol& symbol = symbols[static_cast<size_t>(left)];
    if (symbol.rank != kNoRank) {
      heap.push_back({.rank = symbol.rank, .left = left, .merged = symbol.merged});
      std::ranges::push_heap(heap, later);
    }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].before = i - 1;
    symbols[static_cast<size_t>(i)].after = i + 1 < count ? i + 1 : -1;
    symbols[static_cast<size_t>(i)].rank = kNoRank;
  }
  for (int32_t i = 0; i + 1 < count; ++i) {
    look(i);
  }
  constexpr int32_t kRemoved = -2;
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, later);
    const Scratch::Candidate candidate = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(candidate.left)];
    if (left.after < 0 || left.rank != candidate.rank) {
      continue;  // the pair is another one now, or has been merged
    }
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.after)];
    left.id = candidate.merged;
    left.rank = kNoRank;
    left.after = right.after;
    right.after = kRemoved;
    if (left.after >= 0) {
      symbols[static_cast<size_t>(left.after)].before = candidate.left;
      look(candidate.left);
    }
    if (left.before >= 0) {
      look(left.before);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].after) {
    out.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace espalier::io
