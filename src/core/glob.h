#pragma once
// Patterns over parameter names: `*` matches any run of characters (none and dots too), `?` any
// one; the whole name must match. O(pattern × name).
#include <string_view>

namespace espalier {

bool glob_match(std::string_view pattern, std::string_view name);

}  // namespace espalier
