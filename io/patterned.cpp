#include "io/patterned.h"

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

}  // namespace espalier::io
