#pragma once
// Limits of one config value: a range of numbers, or a list of choices.
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/registry.h"

namespace espalier::config {

/// A value that a key accepts, as text, and its line in the help.
struct Choice {
  std::string name;
  std::string help{};
};

/// The members of a registry as choices.
template <class Entry>
std::vector<Choice> choices(Registry<Entry> all) {
  std::vector<Choice> found;
  for (const Entry* entry : all) {
    found.push_back({.name = std::string(entry->name), .help = std::string(entry->help)});
  }
  return found;
}

/// Elements of lists and values of patterns are held to the same limits.
struct Limits {
  double at_least = -std::numeric_limits<double>::infinity();
  double at_most = std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();
  std::vector<Choice> choices{};  ///< empty: any value in the range
  bool automatic = false;         ///< "auto" stands for 0, an empty list, or io::kAutomatic
  bool codec = false;             ///< numbers may follow a name (parallel/wire/codec.h)
  bool numbers = false;           ///< of a text: a number stands for its digits

  std::vector<std::string> names() const;
  bool has_choice(std::string_view name) const;
};

/// Throws Failure unless `number` is in the range and `text` is one of the choices. `key` and
/// `where` ("FILE:line") begin the message.
struct Place {
  std::string key;
  std::string_view where;
};
/// Throws Failure unless `text` is UTF-8 without a NUL, which TOML and paths can hold.
void check_text(const Place& at, std::string_view text);
void check_word(const Place& at, const Limits& limits, const std::string& text, bool quoted);
void check_number(const Place& at, const Limits& limits, double number, const std::string& text);

/// A number that kernels read as fp32: its rounded value must be in the range, too, and only 0 may
/// become 0.
void check_real(const Place& at, const Limits& limits, double number);

/// `text` for a message: bytes that are not UTF-8 become U+FFFD.
std::string printable(std::string_view text);

/// ">= 1 and <= 8", "\"a\", \"b\"", ...; empty if any value is allowed.
std::string describe(const Limits& limits, bool quoted);

/// The candidate with the fewest edits (insertion, deletion, replacement, swap of neighbours), at
/// most a third of the word's length and at least 2; empty if there is none.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace espalier::config
