#include "io/config/patterned.h"

#include <algorithm>
#include <ranges>

#include "src/core/glob.h"

namespace espalier::io {

const std::string& Patterned::for_name(std::string_view parameter) const {
  for (const auto& [glob, value] : patterns | std::views::reverse) {
    if (glob_match(glob, parameter)) {
      return value;
    }
  }
  return fallback;
}

bool Patterned::matches(std::string_view parameter) const {
  return std::ranges::any_of(patterns,
                             [&](const auto& p) { return glob_match(p.first, parameter); });
}

}  // namespace espalier::io
