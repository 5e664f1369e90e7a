#include "io/patterned.h"

#include <ranges>

namespace espalier::io {

bool glob_matches(std::string_view glob, std::string_view name) {
  // Backtracks to the last star only: an earlier star could take no more than that one can.
  size_t g = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t resume = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g;
      ++n;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') {
    ++g;
  }
  return g == glob.size();
}

const std::string& Patterned::for_name(std::string_view parameter) const {
  for (const auto& [glob, value] : patterns | std::views::reverse) {
    if (glob_matches(glob, parameter)) {
      return value;
    }
  }
  return fallback;
}

}  // namespace espalier::io
