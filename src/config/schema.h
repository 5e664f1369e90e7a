#pragma once
// The schema: one row for each config key, in the order of help and dumps. Parsing, --set, limits,
// dumps and help iterate over these rows, so a new key needs a member in io/config/config.h and a
// row in schema.cpp. Choices of a kind (networks, optimizers, schedules, ...) come from its
// registry.
//
// A member of a Config has one of three rows:
//   key     section.key = value
//   option  written behind the value of a key: method = "nm:1:4" or "nm:m=4". Options have an
//           order; a value without LABEL= is that of the next one. `true` may be omitted.
//           Of a key that may differ by parameter: behind the value of `default`.
//   hidden  no user sets it; ESPALIER_TEST does (parse.h)
#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/config/config.h"
#include "src/config/effect.h"
#include "src/config/limits.h"

namespace espalier::sparse {
struct ParameterSpec;
}

namespace espalier::config {

using io::Config;

/// Pointer to one member of a Config; the alternative is the member's type.
using Slot = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                          std::vector<int64_t>*, std::vector<double>*, io::Patterned*>;

struct Field {
  std::string section;
  std::string name;
  std::function<Slot(Config&)> slot;
  Limits limits;
  std::string help;
  Effect effect;  ///< when a value has an effect
  std::vector<Field> options{};
  // Of an option:
  std::string of_key{};           ///< name of the key in the same section; empty: no option
  std::string label{};            ///< in the key's text
  std::vector<std::string> of{};  ///< values of the key that have it; empty: all

  /// "section.key", or "section.key:LABEL".
  std::string key() const { return of_key.empty() ? path() : section + "." + of_key + ":" + label; }
  /// "section.member".
  std::string path() const { return section + "." + name; }
  bool belongs_to(std::string_view value) const {
    return of.empty() || std::ranges::find(of, value) != of.end();
  }
  /// For reading: the pointers of the slot are not written through.
  Slot read(const Config& config) const { return slot(const_cast<Config&>(config)); }
};

/// The keys.
std::span<const Field> fields();
/// The rows of all members of a Config.
std::span<const Field* const> members();
/// Null if there is no such key.
const Field* find_field(std::string_view section, std::string_view name);
/// The row of section.member; null if there is none.
const Field* find_member(std::string_view section, std::string_view name);
bool is_section(std::string_view name);
/// For the message about an unknown key: "; did you mean ..." or "; known: ...".
std::string suggestion(std::string_view section, std::string_view name);

/// The first word of the value of a key with options.
std::string& word_of(const Field& field, Config& config);
/// Whether the member has an effect in this run.
bool has_effect(const Field& field, const Config& config, const RunFacts& run);

/// Throws Failure if a pattern of a key that may differ by parameter matches none of the network.
void check_patterns(const Config& config, std::span<const sparse::ParameterSpec> network);

/// Throws Failure unless every value of the field is within its limits; `where` is "FILE:line".
void check_limits(const Field& field, const Config& config, std::string_view where);

}  // namespace espalier::config
