#include "io/tokenizer/bpe.h"

#include <algorithm>

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

constexpr int64_t kMaxIds = int64_t{1} << 24;            ///< that of model.vocabulary
constexpr std::string_view kSeparator = "\xe2\x96\x81";  ///< U+2581, "▁"
constexpr char32_t kSeparatorPoint = 0x2581;

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
  merger_ = PairMerger(count);
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
    // Of equal pairs the last counts.
    merger_.add({.left = left_id, .right = right_id, .rank = rank++, .merged = both_id});
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
  merger_.merge(scratch.merges, out);
}

void Bpe::begin_symbols(std::string_view word, Scratch& scratch) const {
  std::vector<PairMerger::Symbol>& symbols = scratch.merges.symbols;
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

}  // namespace espalier::io
