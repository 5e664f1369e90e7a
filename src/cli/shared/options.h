#pragma once
// Options of commands: checks of numbers, and of options that a call does not use.
#include <CLI/CLI.hpp>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace espalier::cli {

/// An option that a call may give and its command does not use: an error, not ignored.
struct OptionUse {
  std::string name;        ///< "--seed"
  bool used = true;        ///< by this call
  std::string_view where;  ///< completes "it has an effect only": "with method random"
};

/// Throws Usage for the first option that is given and not used.
void check_used(const CLI::App& command, std::initializer_list<OptionUse> options);

/// An option with a check of its value.
template <class Value>
CLI::Option* option(CLI::App& command, const std::string& name, Value& value,
                    const std::string& help, const CLI::Validator& check) {
  return command.add_option(name, value, help)->check(check);
}

/// Validators of options: finite and at least zero; above zero; from `low` to `high`. They reject
/// NaN, which CLI11's validators accept.
CLI::Validator at_least_zero();
CLI::Validator above_zero();
CLI::Validator between(double low, double high);

/// Runs `run` and returns 0. All inputs of a prediction come from the command line, so a Failure is
/// reported as wrong usage.
int as_usage(const std::function<void()>& run);

}  // namespace espalier::cli
