#include "io/tokenizer/sentencepiece_merger.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

using File = SentencePieceFile;

constexpr size_t kMaxCutBytes = 256;                    ///< of a piece: it is cut at each place
constexpr size_t kMaxCuts = 16;                         ///< of a piece, on average, into two pieces
constexpr size_t kMaxWord = size_t{1} << 20;            ///< bytes
constexpr std::string_view kMarkText = "\xe2\x96\x81";  ///< U+2581, "▁"

bool is_character(std::string_view text) {
  return !text.empty() && text.size() == utf8_bytes(text[0]);
}

/// Whether it consists of whole characters.
bool is_text(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && !is_continuation(text[at])) {
    at += utf8_bytes(text[at]);
  }
  return at == text.size();
}

/// Normal pieces by rank; empty if scores alone do not determine the library's result.
std::vector<int32_t> ranked_pieces(const File& file) {
  if (file.model != File::Model::bpe) {
    return {};
  }
  std::vector<std::pair<float, int32_t>> scores;
  std::unordered_set<std::string_view> reserved;  // the library finds these before normal ones
  for (const File::Piece& piece : file.pieces) {
    if (piece.kind != File::Kind::normal && piece.kind != File::Kind::user_defined) {
      reserved.insert(piece.text);
    }
  }
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const File::Piece& piece = file.pieces[id];
    const bool normal = piece.kind == File::Kind::normal;
    if (piece.kind == File::Kind::unused || piece.text.size() > kMaxCutBytes ||
        ((normal || piece.kind == File::Kind::user_defined) && reserved.contains(piece.text))) {
      return {};
    }
    if (normal) {
      scores.emplace_back(-piece.score, static_cast<int32_t>(id));
    }
  }
  std::ranges::sort(scores);
  std::vector<int32_t> ids;
  std::optional<float> last;  // of a piece that merges make
  for (const auto& [score, id] : scores) {
    if (!is_character(file.pieces[static_cast<size_t>(id)].text)) {
      if (last == score) {
        return {};  // the library merges the leftmost of both
      }
      last = score;
    }
    ids.push_back(id);
  }
  return ids;
}

/// Of pieces of two normal pieces; empty: too many.
std::vector<PairMerger::Merge> merges_of(
    const File& file, const std::vector<int32_t>& ranked,
    const std::unordered_map<std::string_view, int32_t>& id_of) {
  std::vector<PairMerger::Merge> merges;
  for (size_t rank = 0; rank < ranked.size(); ++rank) {
    const std::string_view text = file.pieces[static_cast<size_t>(ranked[rank])].text;
    for (size_t at = utf8_bytes(text[0]); at < text.size(); at += utf8_bytes(text[at])) {
      const auto left = id_of.find(text.substr(0, at));
      const auto right = id_of.find(text.substr(at));
      if (left != id_of.end() && right != id_of.end()) {
        merges.push_back({.left = left->second,
                          .right = right->second,
                          .rank = static_cast<int32_t>(rank),
                          .merged = ranked[rank]});
      }
    }
    if (merges.size() > kMaxCuts + kMaxCuts * ranked.size()) {
      return {};
    }
  }
  return merges;
}

}  // namespace

SentencePieceMerger::SentencePieceMerger(const File& file)
    : characters_(file.characters), removes_spaces_(file.removes_spaces) {
  const std::vector<int32_t> ranked = ranked_pieces(file);
  std::unordered_map<std::string_view, int32_t> id_of;
  for (const int32_t id : ranked) {
    id_of[file.pieces[static_cast<size_t>(id)].text] = id;
  }
  const std::vector<PairMerger::Merge> merges = merges_of(file, ranked, id_of);
  const std::string_view mark = file.escapes_spaces ? kMarkText : " ";
  const auto space = id_of.find(mark);
  const auto begins_with_space = [](const File::Piece& piece) {
    return piece.kind == File::Kind::user_defined && piece.text.starts_with(' ');
  };
  if (merges.empty() || space == id_of.end() || file.space_is_suffix ||
      std::ranges::any_of(file.pieces, begins_with_space)) {
    return;
  }
  merger_ = PairMerger(merges.size());
  std::ranges::for_each(merges, [this](const auto& merge) { merger_.add(merge); });
  find_bytes(file);
  find_characters(file, ranked);
  find_user_defined(file);
  space_ = space->second;
}

void SentencePieceMerger::find_user_defined(const File& file) {
  std::vector<PieceMatcher::Piece> all;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const File::Piece& piece = file.pieces[id];
    if (piece.kind != File::Kind::user_defined) {
      continue;
    }
    if (is_character(piece.text)) {
      set(code_point(piece.text, 0), static_cast<int32_t>(id));
    }
    std::string text(piece.text);
    for (size_t at = 0; file.escapes_spaces && (at = text.find(kMarkText, at)) < text.size();) {
      text.replace(at, kMarkText.size(), " ");
    }
    all.emplace_back(std::move(text), static_cast<int32_t>(id));
  }
  user_defined_ = PieceMatcher(std::move(all));
  // Of pieces with a space and broken ones, the library may find parts, or none.
  for (const File::Piece& piece : file.pieces) {
    if (piece.kind == File::Kind::user_defined &&
        (piece.text.find(' ') != std::string_view::npos || !is_text(piece.text))) {
      set(code_point(piece.text, 0), kOnlyLibrary);
    }
  }
  set(code_point(kMarkText, 0), kOnlyLibrary);
}

/// Sets the ids of characters and neighbours_.
void SentencePieceMerger::find_characters(const File& file, const std::vector<int32_t>& ranked) {
  ascii_.fill(unknown_);
  for (const int32_t id : ranked) {
    const std::string_view text = file.pieces[static_cast<size_t>(id)].text;
    for (size_t at = 0; at < text.size(); at += utf8_bytes(text[at])) {
      set(code_point(text, at), kOnlyLibrary);  // unless it is a piece
    }
    for (size_t at = 1; at < text.size(); ++at) {
      const auto left = static_cast<unsigned char>(text[at - 1]);
      const auto right = static_cast<unsigned char>(text[at]);
      if (left < ascii_.size() && right < ascii_.size()) {
        neighbours_[left * ascii_.size() + right] = true;
      }
    }
  }
  for (const int32_t id : ranked) {
    const std::string_view text = file.pieces[static_cast<size_t>(id)].text;
    if (is_character(text)) {
      set(code_point(text, 0), id);
    }
  }
  for (const File::Piece& piece : file.pieces) {
    const bool other = piece.kind != File::Kind::normal && piece.kind != File::Kind::byte &&
                       piece.kind != File::Kind::user_defined;
    if (other && is_character(piece.text)) {
      set(code_point(piece.text, 0), kOnlyLibrary);
    }
  }
}

void SentencePieceMerger::set(char32_t point, int32_t id) {
  (point < ascii_.size() ? ascii_[point] : others_[point]) = id;
}

/// Sets byte_ids_ and unknown_: a character in no piece becomes its bytes, if all bytes are pieces.
void SentencePieceMerger::find_bytes(const File& file) {
  std::unordered_map<std::string_view, int32_t> id_of;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].kind == File::Kind::byte) {
      id_of[file.pieces[id].text] = static_cast<int32_t>(id);
    }
  }
  bool all = file.byte_fallback;
  for (unsigned byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto found = id_of.find(fmt::format("<0x{:02X}>", byte));
    all = all && found != id_of.end();
    byte_ids_[byte] = found != id_of.end() ? found->second : -1;
  }
  unknown_ = all ? kBytes : kOnlyLibrary;
}

/// Returns a piece's id, kOnlyLibrary or kBytes.
int32_t SentencePieceMerger::id_of(std::string_view word, size_t at) const {
  const auto first = static_cast<unsigned char>(word[at]);
  std::string_view form;
  if (characters_.begins(first) && characters_.match(word.substr(at), form) > 0) {
    return kOnlyLibrary;
  }
  if (first == ' ') {
    return at > 0 && removes_spaces_ ? kOnlyLibrary : space_;
  }
  if (first < ascii_.size()) {
    return ascii_[first];
  }
  const auto found = others_.find(code_point(word, at));
  return found == others_.end() ? unknown_ : found->second;
}

bool SentencePieceMerger::encode(std::string_view word, Scratch& scratch,
                                 std::vector<int32_t>& out) const {
  if (space_ < 0 || word.empty() || word.size() > kMaxWord ||
      (removes_spaces_ && (word[0] != ' ' || word == " "))) {
    return false;
  }
  bool may_match = false;
  for (size_t at = 0; at < word.size(); at += utf8_bytes(word[at])) {
    const bool whole = !is_continuation(word[at]) && at + utf8_bytes(word[at]) <= word.size();
    if (!whole || id_of(word, at) == kOnlyLibrary) {
      return false;
    }
    may_match = may_match || user_defined_.begins(static_cast<unsigned char>(word[at]));
  }
  size_t begin = 0;
  for (size_t at = 0; may_match && at < word.size();) {
    int32_t id = 0;
    const size_t bytes = user_defined_.match(word.substr(at), id);
    if (bytes == 0) {
      at += utf8_bytes(word[at]);
      continue;
    }
    encode_between(word.substr(begin, at - begin), scratch, out);
    out.push_back(id);
    at += bytes;
    begin = at;
  }
  encode_between(word.substr(begin), scratch, out);
  return true;
}

/// Of a word, between user-defined pieces.
void SentencePieceMerger::encode_between(std::string_view text, Scratch& scratch,
                                         std::vector<int32_t>& out) const {
  size_t begin = 0;
  for (size_t at = 1; at <= text.size(); ++at) {
    if (at == text.size() || can_cut(text[at - 1], text[at])) {
      const std::string_view part = text.substr(begin, at - begin);
      if (part == " ") {  // as a word, the library may remove it
        out.push_back(space_);
      } else {
        scratch.cache.append(part, out, [&] { merge(part, scratch, out); });
      }
      begin = at;
    }
  }
}

/// No piece holds both characters, so no merge joins them.
bool SentencePieceMerger::can_cut(char before, char after) const {
  const auto left = static_cast<unsigned char>(before);
  const auto right = static_cast<unsigned char>(after);
  return left < ascii_.size() && right < ascii_.size() && before != ' ' && after != ' ' &&
         !neighbours_[left * ascii_.size() + right];
}

void SentencePieceMerger::merge(std::string_view part, Scratch& scratch,
                                std::vector<int32_t>& out) const {
  scratch.merges.symbols.clear();
  for (size_t at = 0; at < part.size();) {
    const size_t bytes = utf8_bytes(part[at]);
    const int32_t id = id_of(part, at);
    if (id == kBytes) {
      for (const char byte : part.substr(at, bytes)) {
        scratch.merges.symbols.push_back({.id = byte_ids_[static_cast<unsigned char>(byte)]});
      }
    } else {
      scratch.merges.symbols.push_back({.id = id});
    }
    at += bytes;
  }
  merger_.merge(scratch.merges, out);
}

}  // namespace espalier::io
