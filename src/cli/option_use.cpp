#include "src/cli/option_use.h"

#include "src/core/error.h"

namespace espalier::cli {

void check_used(const CLI::App& command, std::initializer_list<OptionUse> options) {
  for (const OptionUse& option : options) {
    if (!option.used && command.count(option.name) > 0) {
      throw Usage(fmt::format("{} has no effect in this call of {}, only {}; leave it out",
                              option.name, command.get_name(), option.where));
    }
  }
}

}  // namespace espalier::cli
