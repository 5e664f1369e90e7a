#include "src/config/limits.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "parallel/wire/codec.h"
#include "src/config/removed.h"

namespace espalier::config {
namespace {

/// Insertions, deletions, replacements and swaps of neighbours, each one edit.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

/// Of the numbers behind a codec's name.
void check_codec(const Place& at, const std::string& text) try {
  parallel::parse_codec(text);
} catch (const Failure& error) {
  fail("{}: {}: {}", at.where, at.key, error.what());
}

/// Control characters as JSON escapes.
std::string quoted_printable(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool is_utf8(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore) ==
         quoted_printable(text);
}

bool within(const Limits& limits, double number) {
  return std::isfinite(number) && number >= limits.at_least && number <= limits.at_most &&
         number > limits.above && number < limits.below;
}

/// "out of range; allowed: ...".
std::string range_text(Limits limits) {
  limits.choices.clear();
  return "out of range; allowed: " + describe(limits, false);
}

}  // namespace

std::string printable(std::string_view text) {
  const std::string quoted = quoted_printable(text);
  return quoted.substr(1, quoted.size() - 2);
}

void check_text(const Place& at, std::string_view text) {
  check(is_utf8(text) && text.find('\0') == std::string_view::npos,
        "{}: {} = {} has a NUL or bytes that are not UTF-8, which no config can hold; use other "
        "characters",
        at.where, at.key, quoted_printable(text));
}

std::vector<std::string> Limits::names() const {
  std::vector<std::string> found;
  for (const Choice& choice : choices) {
    found.push_back(choice.name);
  }
  return found;
}

bool Limits::has_choice(std::string_view name) const {
  return std::ranges::find(choices, name, &Choice::name) != choices.end();
}

void check_word(const Place& at, const Limits& limits, const std::string& text, bool quoted) {
  check_text(at, text);
  const std::string name = limits.codec ? text.substr(0, text.find(':')) : text;
  if (limits.choices.empty()) {
    return;
  }
  if (limits.has_choice(name)) {
    if (limits.codec) {
      check_codec(at, text);
    }
    return;
  }
  if (const std::string_view instead = removed_value(at.key, name); !instead.empty()) {
    fail("{}: {} = {}: this value was removed: {}", at.where, at.key, quoted_printable(name),
         instead);
  }
  const std::vector<std::string> known = limits.names();
  const std::string near = quoted ? nearest(name, known) : "";
  fail("{}: {} = {} is unknown{}; available: {}", at.where, at.key,
       quoted ? fmt::format("\"{}\"", name) : name,
       near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near), fmt::join(known, ", "));
}

void check_number(const Place& at, const Limits& limits, double number, const std::string& text) {
  check(within(limits, number), "{}: {} = {} is {}", at.where, at.key, text, range_text(limits));
  check_word(at, limits, text, false);
}

void check_real(const Place& at, const Limits& limits, double number) {
  check_number(at, limits, number, fmt::format("{}", number));
  const auto rounded = static_cast<float>(number);
  check(within(limits, rounded), "{}: {} = {} is {} in fp32, {}", at.where, at.key, number, rounded,
        range_text(limits));
  check(rounded != 0 || number == 0, "{}: {} = {} is 0 in fp32; write 0, or at least 1e-37",
        at.where, at.key, number);
}

std::string describe(const Limits& limits, bool quoted) {
  if (!limits.choices.empty()) {
    std::vector<std::string> shown = limits.names();
    for (std::string& name : shown) {
      name = quoted ? fmt::format("\"{}\"", name) : name;
    }
    return fmt::format("{}", fmt::join(shown, ", "));
  }
  std::string low;
  std::string high;
  if (std::isfinite(limits.at_least)) {
    low = fmt::format(">= {}", limits.at_least);
  } else if (std::isfinite(limits.above)) {
    low = fmt::format("> {}", limits.above);
  }
  if (std::isfinite(limits.at_most)) {
    high = fmt::format("<= {}", limits.at_most);
  } else if (std::isfinite(limits.below)) {
    high = fmt::format("< {}", limits.below);
  }
  return low + (low.empty() || high.empty() ? "" : " and ") + high;
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    // A short word is "near" everything: at least half of it must stand.
    if (distance < best_distance && 2 * distance <= candidate.size() + 1) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace espalier::config
