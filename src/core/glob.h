#pragma once
// Patterns over parameter names: `*` matches any run of characters (also an empty one, and dots),
// `?` matches any one character. The whole name must match. O(pattern × name).
#include <string_view>

namespace espalier {

bool glob_match(std::string_view pattern, std::string_view name);

}  // namespace espalier
