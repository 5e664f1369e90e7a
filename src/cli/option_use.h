#pragma once
// Options that a call gives and its command does not use: they are errors, not ignored.
#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string>
#include <string_view>

namespace espalier::cli {

struct OptionUse {
  std::string name;        ///< "--block"
  bool used = true;        ///< by this call
  std::string_view where;  ///< completes "it has an effect only": "with method block"
};

/// Throws Usage for the first option that is given and not used.
void check_used(const CLI::App& command, std::initializer_list<OptionUse> options);

}  // namespace espalier::cli
