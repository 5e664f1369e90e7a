#include "io/tokenizer/pattern.h"

#include <algorithm>
#include <limits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

constexpr size_t kMaxPattern = size_t{1} << 14;  ///< bytes of a regular expression
/// Backtracking points of a match, and as many more for each byte of the text.
constexpr uint64_t kMaxMatchSteps = 2'000'000;
constexpr uint64_t kMaxStepsPerByte = 8;
constexpr size_t kMaxJitStack = size_t{1} << 20;
/// What \w is to Oniguruma.
constexpr std::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

struct CompileContext {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  CompileContext() { pcre2_set_newline(context, PCRE2_NEWLINE_LF); }
  ~CompileContext() { pcre2_compile_context_free(context); }
  CompileContext(const CompileContext&) = delete;
  CompileContext& operator=(const CompileContext&) = delete;
};

std::string pcre2_text(int error) {
  char text[256] = "";
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

pcre2_code* compile_pattern(std::string_view expression, int& error, size_t& offset) {
  const CompileContext context;
  // Ruby's ^ and $ match at line ends.
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                       PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                       &offset, context.context);
}

/// PCRE2's \p{Han} holds the characters that several scripts share (Script_Extensions),
/// Oniguruma's does not.
std::string script_property(std::string_view property) {
  const std::string of_script = fmt::format("\\p{{sc:{}}}", property);
  int error = 0;
  size_t offset = 0;
  pcre2_code* code = property.size() > 2 ? compile_pattern(of_script, error, offset) : nullptr;
  pcre2_code_free(code);
  return fmt::format("{{{}{}}}", code != nullptr ? "sc:" : "", property);
}

/// An expression of Oniguruma's syntax in PCRE2's.
class Translation {
 public:
  Translation(std::string_view from, const JsonField& place) : from_(from), place_(&place) {}

  std::string run() {
    while (at_ < from_.size()) {
      const char c = from_[at_++];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        in_class(c);
      } else {
        out_ += c;
        if (c == '[') {
          begin_class();
        }
      }
    }
    return std::move(out_);
  }

 private:
  char next() const { return at_ < from_.size() ? from_[at_] : '\0'; }

  void begin_class() {
    in_class_ = true;
    for (const char first : {'^', ']'}) {  // "[]" and "[^]": the bracket is a member
      if (next() == first) {
        out_ += first;
        ++at_;
      }
    }
  }

  void in_class(char c) {
    if (c == '[' && next() == ':') {
      const size_t end = from_.find(":]", at_);
      if (end != std::string_view::npos) {
        out_ += from_.substr(at_ - 1, end + 2 - (at_ - 1));
        at_ = end + 2;
        return;
      }
    }
    if (c == '[' || (c == '&' && next() == '&')) {
      place_->refuse(
          "has a class within a class (\"[\" or \"&&\" between brackets), which is not "
          "supported; write one class");
    }
    in_class_ = c != ']';
    out_ += c;
  }

  void escape() {
    const char c = next();
    ++at_;
    switch (c) {
      case 's':
        out_ += "\\p{White_Space}";
        return;
      case 'S':
        out_ += "\\P{White_Space}";
        return;
      case 'h':  // a hexadecimal digit
        out_ += in_class_ ? "0-9a-fA-F" : "[0-9a-fA-F]";
        return;
      case 'w':
        out_ += in_class_ ? std::string(kWordMembers) : fmt::format("[{}]", kWordMembers);
        return;
      case 'W':
        if (in_class_) {
          place_->refuse("has \\W within a class, which is not supported");
        }
        out_ += fmt::format("[^{}]", kWordMembers);
        return;
      case 'K':
        place_->refuse("has \\K, which is not supported");
      case 'p':
      case 'P': {
        const size_t end = next() == '{' ? from_.find('}', at_) : std::string_view::npos;
        out_ += '\\';
        out_ += c;
        if (end != std::string_view::npos) {
          out_ += script_property(from_.substr(at_ + 1, end - at_ - 1));
          at_ = end + 1;
        }
        return;
      }
      default:
        out_ += '\\';
        if (at_ <= from_.size()) {
          out_ += c;
        }
    }
  }

  std::string_view from_;
  const JsonField* place_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  bool compiled_to_machine_code = false;
  std::string expression;
  Code() = default;
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

struct PatternMemory::Parts {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{1} << 15, kMaxJitStack, nullptr);
  Parts() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~Parts() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
};

PatternMemory::PatternMemory() : parts_(std::make_unique<Parts>()) {}
PatternMemory::~PatternMemory() = default;

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.local_ = text.size() == utf8_bytes(text.empty() ? '\0' : text[0]);
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(const std::string& expression, const JsonField& place) {
  if (expression.size() > kMaxPattern) {
    place.refuse("has {} bytes; a regular expression has at most {}", expression.size(),
                 kMaxPattern);
  }
  int error = 0;
  size_t offset = 0;
  const std::string translated = Translation(expression, place).run();
  auto code = std::make_shared<Code>();
  code->expression = expression;
  code->code = compile_pattern(translated, error, offset);
  if (code->code == nullptr) {
    place.refuse("is no regular expression: {} (at byte {} of {})", pcre2_text(error), offset,
                 JsonField::printable(translated));
  }
  code->compiled_to_machine_code =
      pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  uint32_t lookbehind = 0;
  pcre2_pattern_info(code->code, PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
  Pattern pattern;
  pattern.looks_back_ = lookbehind > 0 || expression.find("\\G") != std::string::npos;
  pattern.code_ = std::move(code);
  return pattern;
}

Pattern Pattern::read(const JsonField& field) {
  if (const JsonField text = field.maybe("String"); !text.is_null()) {
    if (text.text().empty()) {
      text.refuse("is empty");
    }
    return literal(text.text());
  }
  const JsonField expression = field.at("Regex");
  return regex(expression.text(), expression);
}

Pattern::Found Pattern::find(std::string_view text, size_t from, bool open, PatternMemory& memory,
                             Match& match) const {
  if (code_ == nullptr) {
    const size_t at = text.find(literal_, from);
    if (at == std::string_view::npos) {
      return open && literal_.size() > 1 ? Found::undecided : Found::nothing;
    }
    match = {.begin = at, .end = at + literal_.size()};
    return Found::match;
  }
  PatternMemory::Parts& parts = *memory.parts_;
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_set_match_limit(parts.context, static_cast<uint32_t>(std::min<uint64_t>(
                                           kMaxMatchSteps + kMaxStepsPerByte * text.size(),
                                           std::numeric_limits<uint32_t>::max())));
  const uint32_t options = open ? PCRE2_PARTIAL_HARD : 0;
  const int code = code_->compiled_to_machine_code
                       ? pcre2_jit_match(code_->code, subject, text.size(), from, options,
                                         parts.match, parts.context)
                       : pcre2_match(code_->code, subject, text.size(), from,
                                     options | PCRE2_NO_UTF_CHECK, parts.match, parts.context);
  if (code >= 0) {
    const PCRE2_SIZE* place = pcre2_get_ovector_pointer(parts.match);
    match = {.begin = place[0], .end = place[1]};
    return Found::match;
  }
  if (code == PCRE2_ERROR_PARTIAL) {
    return Found::undecided;
  }
  if (code == PCRE2_ERROR_NOMATCH) {
    return open ? Found::undecided : Found::nothing;
  }
  fail(
      "the tokenizer's pattern \"{}\" cannot be matched at byte {} of a text of {}: {}; simplify "
      "the pattern",
      JsonField::printable(code_->expression), from, text.size(), pcre2_text(code));
}

bool Pattern::replace_all(std::string_view text, std::string_view content, PatternMemory& memory,
                          std::string& out) const {
  out.clear();
  bool any = false;
  size_t copied = 0;
  Match match;
  for (size_t from = 0;
       from <= text.size() && find(text, from, false, memory, match) == Found::match; any = true) {
    out += text.substr(copied, match.begin - copied);
    out += content;
    copied = match.end;
    // After an empty match the next search begins a code point later.
    from = match.end > match.begin   ? match.end
           : match.end < text.size() ? match.end + utf8_bytes(text[match.end])
                                     : match.end + 1;
  }
  out += any ? text.substr(copied) : std::string_view();
  return any;
}

}  // namespace espalier::io
