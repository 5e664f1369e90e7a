// Looking keys up, near misses, and holding values to their limits.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "io/config/codec_spec.h"
#include "io/config/fields.h"
#include "src/core/error.h"

namespace espalier::io {
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

/// One value of one key, and where it was written.
struct Place {
  const Field& field;
  std::string_view where;
};

/// The numbers behind a codec's name.
void check_codec(const Place& at, const std::string& text) try {
  parse_codec(text);
} catch (const Failure& error) {
  fail("{}: {}: {}", at.where, at.field.key(), error.what());
}

void check_word(const Place& at, const std::string& whole, bool quoted) {
  const Limits& limits = at.field.limits;
  const std::string text = limits.codec ? whole.substr(0, whole.find(':')) : whole;
  if (limits.codec && std::ranges::find(limits.values, text) != limits.values.end()) {
    return check_codec(at, whole);
  }
  if (limits.values.empty() || std::ranges::find(limits.values, text) != limits.values.end()) {
    return;
  }
  const std::string shown = quoted ? fmt::format("\"{}\"", text) : text;
  const bool planned = !quoted || std::ranges::find(limits.later, text) != limits.later.end();
  check(!planned, "{}: {} = {} is not available in this version; available: {}", at.where,
        at.field.key(), shown, fmt::join(limits.values, ", "));
  std::vector<std::string> known = limits.values;
  known.insert(known.end(), limits.later.begin(), limits.later.end());
  const std::string near = nearest(text, known);
  fail("{}: {} = {} is unknown{}; available: {}", at.where, at.field.key(), shown,
       near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near),
       fmt::join(limits.values, ", "));
}

template <class Number>
void check_number(const Place& at, Number value) {
  const Limits& limits = at.field.limits;
  const auto x = static_cast<double>(value);
  const bool within = std::isfinite(x) && x >= limits.at_least && x <= limits.at_most &&
                      x > limits.above && x < limits.below;
  check(within, "{}: {} = {} is out of range; allowed: {}", at.where, at.field.key(), value,
        describe({.at_least = limits.at_least,
                  .at_most = limits.at_most,
                  .above = limits.above,
                  .below = limits.below},
                 false));
  check_word(at, fmt::format("{}", value), false);
}

struct Checker {
  Place at;
  void operator()(const bool* value) const { check_word(at, *value ? "true" : "false", false); }
  void operator()(const int64_t* value) const { check_number(at, *value); }
  void operator()(const double* value) const { check_number(at, *value); }
  void operator()(const std::string* value) const { check_word(at, *value, true); }
  void operator()(const std::vector<std::string>* values) const {
    std::ranges::for_each(*values, [&](const auto& value) { check_word(at, value, true); });
  }
  void operator()(const std::vector<int64_t>* values) const {
    std::ranges::for_each(*values, [&](int64_t value) { check_number(at, value); });
  }
  void operator()(const Patterned* value) const {
    check_word(at, value->fallback, true);
    for (const auto& [glob, word] : value->patterns) {
      check_word(at, word, true);
    }
  }
};

}  // namespace

const Field* find_field(std::string_view section, std::string_view name) {
  for (const Field& field : config_fields()) {
    if (field.section == section && field.name == name) {
      return &field;
    }
  }
  return nullptr;
}

bool is_section(std::string_view name) {
  return std::ranges::find(config_fields(), name, &Field::section) != config_fields().end();
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

std::string suggestion(std::string_view section, std::string_view name) {
  std::vector<std::string> here;
  std::vector<std::string> sections;
  std::string elsewhere;
  for (const Field& field : config_fields()) {
    if (field.section == section) {
      here.push_back(field.name);
    } else if (field.name == name && elsewhere.empty()) {
      elsewhere = field.key();
    }
    if (sections.empty() || sections.back() != field.section) {
      sections.push_back(field.section);
    }
  }
  std::string near;
  if (!here.empty()) {
    near = elsewhere.empty() ? nearest(name, here) : elsewhere;
  } else if (name.empty()) {
    near = nearest(section, sections);
  } else {
    near = elsewhere.empty() ? nearest(section, sections) : elsewhere;
  }
  if (!near.empty()) {
    return fmt::format("; did you mean \"{}\"?", near);
  }
  return fmt::format("; known: {}", fmt::join(here.empty() ? sections : here, ", "));
}

void check_limits(const Field& field, const Config& config, std::string_view where) {
  // The slot is only read: Slot has no const twin because parsing needs to write through it.
  std::visit(Checker{{field, where}}, field.slot(const_cast<Config&>(config)));
}

std::string describe(const Limits& limits, bool quoted) {
  if (!limits.values.empty()) {
    std::string out;
    for (const std::string& value : limits.values) {
      out += (out.empty() ? "" : ", ") + (quoted ? fmt::format("\"{}\"", value) : value);
    }
    return out;
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

}  // namespace espalier::io
