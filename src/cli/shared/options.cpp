#include "src/cli/shared/options.h"

#include <cmath>

#include "src/core/error.h"

namespace espalier::cli {
namespace {

/// Accepts finite numbers with `good(value)`; the error shows the input and `wanted`.
CLI::Validator number_check(const std::string& wanted, const std::function<bool(double)>& good) {
  return {[wanted, good](std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && std::isfinite(value) && good(value)
                       ? std::string()
                       : fmt::format("{} is not {}", text, wanted);
          },
          ""};
}

}  // namespace

void check_used(const CLI::App& command, std::initializer_list<OptionUse> options) {
  for (const OptionUse& option : options) {
    if (!option.used && command.count(option.name) > 0) {
      throw Usage(fmt::format("{} has no effect in this call of {}, only {}; leave it out",
                              option.name, command.get_name(), option.where));
    }
  }
}

int as_usage(const std::function<void()>& run) {
  std::string text;
  try {
    run();
    return 0;
  } catch (const Failure& error) {
    text = error.what();
  }
  throw Usage(text);
}

CLI::Validator at_least_zero() {
  return number_check("a number >= 0", [](double value) { return value >= 0; });
}

CLI::Validator between(double low, double high) {
  return number_check(fmt::format("a number from {} to {}", low, high),
                      [low, high](double value) { return value >= low && value <= high; });
}

CLI::Validator above_zero() {
  return number_check("a number > 0", [](double value) { return value > 0; });
}

}  // namespace espalier::cli
