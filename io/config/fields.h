#pragma once
// The list of config keys: one row each, in the order of help and dumps. Everything that reads or
// writes a Config as text goes through it. Internal to io.
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/config/config.h"

namespace espalier::io {

/// A pointer to the member of one Config; the alternative tells its type.
using Slot = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                          std::vector<int64_t>*, Patterned*>;

/// What a value must be. Elements of lists and values of patterns are held to the same limits.
struct Limits {
  double at_least = -std::numeric_limits<double>::infinity();
  double at_most = std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();
  std::vector<std::string> values{};  ///< the only ones that work, as text; empty: any
  std::vector<std::string> later{};   ///< names with a meaning that this version does not have
  bool automatic = false;             ///< "auto" stands for 0, or for an empty list
  bool codec = false;                 ///< numbers may follow a word (codec_spec.h)
};

struct Field {
  std::string section;
  std::string name;
  std::function<Slot(Config&)> slot;
  Limits limits;
  std::string help;

  std::string key() const { return section + "." + name; }
};

std::span<const Field> config_fields();
/// nullptr when there is none.
const Field* find_field(std::string_view section, std::string_view name);
/// The `, did you mean …` part for a key that does not exist; empty when nothing is near.
std::string suggestion(std::string_view section, std::string_view name);
bool is_section(std::string_view name);
/// The nearest of `candidates` within a third of its length (at least 2 edits); empty when none is.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// Throws Failure unless every value of the field is within its limits; `where` is "FILE:line".
void check_limits(const Field& field, const Config& config, std::string_view where);
/// "1 .. 8", "\"a\", \"b\"", … ; empty when anything goes.
std::string describe(const Limits& limits, bool quoted);
/// The value as TOML.
std::string toml_value(const Field& field, const Config& config);

}  // namespace espalier::io
