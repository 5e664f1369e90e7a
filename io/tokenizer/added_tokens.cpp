#include "io/tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

/// A word character of Rust's regular expressions, but for letters-like symbols (Other_Alphabetic).
bool is_word(char32_t point) {
  if (point == 0x200c || point == 0x200d || (point >= 0x24b6 && point <= 0x24e9) ||
      (point >= 0x1f130 && point <= 0x1f149) || (point >= 0x1f150 && point <= 0x1f169) ||
      (point >= 0x1f170 && point <= 0x1f189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_word(code_point(text, 0));
}

bool ends_with_word(std::string_view text) {
  size_t at = text.size();
  while (at > 0 && is_continuation(text[at - 1])) {
    --at;
  }
  return at > 0 && is_word(code_point(text, at - 1));
}

}  // namespace

void AddedTokenSet::add(const AddedToken& token) {
  const std::string& text = token.searched;
  if (text.empty()) {
    return;
  }
  uint32_t node = 0;
  for (const char c : text) {
    const uint64_t key = uint64_t{node} << 8U | static_cast<unsigned char>(c);
    const auto [place, is_new] = children_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
    if (is_new) {
      nodes_.emplace_back();
    }
    node = place->second;
  }
  begins_[static_cast<unsigned char>(text[0])] = true;
  nodes_[node].entry = static_cast<uint32_t>(tokens_.size());
  tokens_.push_back({.id = token.id,
                     .lstrip = token.lstrip,
                     .rstrip = token.rstrip,
                     .single_word = token.single_word});
  longest_ = std::max(longest_, text.size());
}

const AddedTokenSet::Entry* AddedTokenSet::longest_at(std::string_view text, size_t at,
                                                      size_t& end) const {
  uint32_t node = 0;
  uint32_t found = kNone;
  for (size_t i = at; i < text.size(); ++i) {
    const auto child = children_.find(uint64_t{node} << 8U | static_cast<unsigned char>(text[i]));
    if (child == children_.end()) {
      break;
    }
    node = child->second;
    if (nodes_[node].entry != kNone) {
      found = nodes_[node].entry;
      end = i + 1;
    }
  }
  return found == kNone ? nullptr : &tokens_[found];
}

bool AddedTokenSet::cut(std::string_view text, std::vector<Part>& parts) const {
  bool all = true;
  size_t done = 0;
  for (size_t at = 0; !tokens_.empty() && at < text.size();) {
    size_t end = 0;
    const Entry* token =
        begins_[static_cast<unsigned char>(text[at])] ? longest_at(text, at, end) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    at = end;
    if (token->single_word &&
        (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) {
      all = false;
      continue;
    }
    if (token->lstrip) {
      // White space that an earlier token took is not taken again.
      begin = std::max(begin - trailing_white_space(text.substr(0, begin)), done);
    }
    if (token->rstrip) {
      end += leading_white_space(text.substr(end));
    }
    if (done < begin) {
      parts.push_back({.begin = done, .end = begin});
    }
    parts.push_back({.begin = begin, .end = end, .token = token->id});
    done = end;
  }
  if (done < text.size()) {
    parts.push_back({.begin = done, .end = text.size()});
  }
  return all;
}

}  // namespace espalier::io
