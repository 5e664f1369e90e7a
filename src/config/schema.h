#pragma once
// The schema: one row for each config key, in the order of help and dumps. Parsing, --set, limits,
// dumps and help iterate over these rows, so a new key needs a member in io/config/config.h and a
// row in schema.cpp. Choices of a kind (networks, optimizers, schedules, ...) come from its
// registry.
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

  std::string key() const { return section + "." + name; }
  /// For reading: the pointers of the slot are not written through.
  Slot read(const Config& config) const { return slot(const_cast<Config&>(config)); }
};

std::span<const Field> fields();
/// Null if there is none.
const Field* find_field(std::string_view section, std::string_view name);
bool is_section(std::string_view name);
/// For the message about an unknown key: "; did you mean ..." or "; known: ...".
std::string suggestion(std::string_view section, std::string_view name);

/// Throws Failure if a pattern of a key that may differ by parameter matches none of the network.
void check_patterns(const Config& config, std::span<const sparse::ParameterSpec> network);

/// Throws Failure unless every value of the field is within its limits; `where` is "FILE:line".
void check_limits(const Field& field, const Config& config, std::string_view where);

}  // namespace espalier::config
