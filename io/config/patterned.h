#pragma once
// One setting that may differ by parameter: a default and an ordered list of (glob, value). In TOML
// either a plain value, or an inline table {default = "dense", "blocks.*.mlp.*" = "sparse"}. `*`
// matches any run of characters (dots too), `?` any one. The last pattern that matches wins.
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::io {

/// `*` matches any run of characters (also an empty one, and dots), `?` any one character. The
/// whole name must match. O(pattern × name).
bool glob_match(std::string_view pattern, std::string_view name);

/// Throws Failure, which begins with `where`, unless `pattern` matches one of the parameters'
/// names.
void check_matches(std::string_view where, std::string_view pattern,
                   std::span<const std::string> names);

struct Patterned {
  std::string fallback{};  ///< the value where no pattern matches
  std::vector<std::pair<std::string, std::string>>
      patterns{};  ///< (glob, value), in the file's order

  const std::string& for_name(std::string_view parameter) const;
  /// Whether a pattern, not the default, decides for it.
  bool matches(std::string_view parameter) const;
  bool uniform() const { return patterns.empty(); }
  /// Whether `predicate` holds for the default or for the value of a pattern.
  template <class Predicate>
  bool any(const Predicate& predicate) const {
    return predicate(fallback) ||
           std::ranges::any_of(patterns, [&](const auto& one) { return predicate(one.second); });
  }
  bool operator==(const Patterned&) const = default;
};

}  // namespace espalier::io
