#include "io/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

constexpr std::string_view kNormalizers = "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence";

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

/// The first byte at or after `at` that is no ASCII.
size_t skip_ascii(std::string_view text, size_t at) {
  while (at < text.size() && is_ascii(text[at])) {
    ++at;
  }
  return at;
}

/// Appends a normal form of `text`; `points` is scratch memory.
void append_form(std::string_view text, int options, std::vector<int32_t>& points,
                 std::string& out) {
  const auto flags = static_cast<utf8proc_option_t>(options);
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  const auto decompose = [&] {
    return utf8proc_decompose(bytes, size, points.data(),
                              static_cast<utf8proc_ssize_t>(points.size()), flags);
  };
  points.resize(std::max(points.size(), 2 * text.size() + 16));
  utf8proc_ssize_t count = decompose();
  if (count > static_cast<utf8proc_ssize_t>(points.size())) {
    points.resize(static_cast<size_t>(count));
    count = decompose();
  }
  require(count >= 0, "utf8proc takes valid UTF-8", utf8proc_errmsg(count));
  count = utf8proc_normalize_utf32(points.data(), count, flags);
  require(count >= 0, "utf8proc normalizes valid UTF-8", utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  }
}

}  // namespace

Normalizer Normalizer::read(const JsonField& field) {
  Normalizer normalizer;
  if (!field.is_null()) {
    normalizer.add(field);
  }
  return normalizer;
}

void Normalizer::add(const JsonField& field) {
  const std::string& type = field.type();
  if (type == "Sequence") {
    for (const JsonField& element : field.at("normalizers").elements()) {
      add(element);
    }
  } else if (type == "Prepend") {
    steps_.push_back({.pattern = {}, .content = field.at("prepend").text()});
  } else if (type == "Replace") {
    steps_.push_back(
        {.pattern = Pattern::read(field.at("pattern")), .content = field.at("content").text()});
    is_local_ = is_local_ && steps_.back().pattern->is_local();
  } else {
    const Form form = type == "NFC"    ? Form::nfc
                      : type == "NFD"  ? Form::nfd
                      : type == "NFKC" ? Form::nfkc
                      : type == "NFKD" ? Form::nfkd
                                       : Form::none;
    if (form == Form::none) {
      field.refuse_type(kNormalizers);
    }
    steps_.push_back({.form = form, .pattern = {}, .content = {}});
    has_form_ = true;
  }
}

/// ASCII is in every form, and never composes with what is before it: only parts that begin with
/// the ASCII character before another one are looked at.
void Normalizer::compose(std::string_view text, Form form, std::string& out) {
  const int compatible = form == Form::nfkc || form == Form::nfkd ? UTF8PROC_COMPAT : 0;
  const int composed =
      form == Form::nfc || form == Form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  std::vector<int32_t> points;
  size_t at = 0;
  while (at < text.size()) {
    const size_t other = skip_ascii(text, at);
    const size_t begin = other < text.size() && other > at ? other - 1 : other;
    out += text.substr(at, begin - at);
    const size_t end = static_cast<size_t>(
        std::find_if(text.begin() + static_cast<std::ptrdiff_t>(other), text.end(), is_ascii) -
        text.begin());
    if (begin < end) {
      append_form(text.substr(begin, end - begin), UTF8PROC_STABLE | compatible | composed, points,
                  out);
    }
    at = end;
  }
}

/// False: `out` is not used, the text stays as it is.
bool Normalizer::step(const Step& step, std::string_view text, bool continues,
                      PatternMemory& memory, std::string& out) {
  out.clear();
  if (step.form != Form::none) {
    if (skip_ascii(text, 0) == text.size()) {
      return false;
    }
    compose(text, step.form, out);
    return true;
  }
  if (!step.pattern) {
    if (continues || text.empty()) {
      return false;
    }
    out = step.content;
    out += text;
    return true;
  }
  return step.pattern->replace_all(text, step.content, memory, out);
}

std::string_view Normalizer::apply(std::string_view text, bool continues, PatternMemory& memory,
                                   std::string& buffer) const {
  std::string next;
  for (const Step& each : steps_) {
    if (step(each, text, continues, memory, next)) {
      std::swap(buffer, next);
      text = buffer;
    }
  }
  return text;
}

bool Normalizer::cuts_at(std::string_view text, size_t at) const {
  return is_local_ && (has_form_ ? is_ascii(text[at]) : !is_continuation(text[at]));
}

}  // namespace espalier::io
