#include "io/config/patterned.h"

#include <algorithm>
#include <ranges>

#include "src/core/error.h"

namespace espalier::io {

bool glob_match(std::string_view pattern, std::string_view name) {
  // On a mismatch only the last star extends, by one character: O(pattern * name).
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

void check_matches(std::string_view where, std::string_view pattern,
                   std::span<const std::string> names) {
  const bool used = std::ranges::any_of(
      names, [pattern](const std::string& name) { return glob_match(pattern, name); });
  check(used, "{}: the pattern \"{}\" matches no parameter; names look like \"{}\"", where, pattern,
        names.empty() ? "" : names.front());
}

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
