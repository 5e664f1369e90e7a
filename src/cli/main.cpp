// espalier: the program. Exit codes: exit_code.h.
#include <sys/resource.h>

#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <limits>
#include <span>
#include <string_view>

#include "parallel/transport/mpi_communicator.h"
#include "src/cli/commands.h"
#include "src/cli/shared/console.h"
#include "src/cli/shared/exit_code.h"
#include "src/cli/shared/stop_signals.h"
#include "src/core/error.h"

namespace {

using namespace espalier;

constexpr cli::Register kSubcommands[] = {cli::register_train,  cli::register_supervise,
                                          cli::register_sweep,  cli::register_compare_at_time,
                                          cli::register_prune,  cli::register_inspect,
                                          cli::register_eval,   cli::register_sample,
                                          cli::register_data,   cli::register_convert,
                                          cli::register_report, cli::register_schedule,
                                          cli::register_plan,   cli::register_plan_communication,
                                          cli::register_codec,  cli::register_info};

/// Why `text` is not `expected`; empty: it is a finite number that `fits`.
std::string check_number(const std::string& text, std::string_view expected, bool (*fits)(double)) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool read = end != text.c_str() && *end == 0;
  return read && std::isfinite(number) && fits(number)
             ? ""
             : fmt::format("{} is not {}", text, expected);
}

constexpr std::string_view kEmptyValue = "the value is empty; give one, or leave the option out";

/// CLI11 would take the word after `--name=` as the value. Words after `--` are another command's.
void check_arguments(std::span<char* const> arguments) {
  for (const std::string_view argument : arguments) {
    if (argument == "--") {
      return;
    }
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      throw Usage(fmt::format("{}: {}", argument.substr(0, argument.size() - 1), kEmptyValue));
    }
  }
}

/// CLI11 takes the nearest number where an integer is out of range, and -1 as unsigned.
template <class Integer>
std::string fault_of_integer(const std::string& text) {
  Integer value{};
  const auto found = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool negative = std::is_unsigned_v<Integer> && text.starts_with('-');
  return found.ec == std::errc::result_out_of_range || negative
             ? fmt::format("{} is not between {} and {}", text, std::numeric_limits<Integer>::min(),
                           std::numeric_limits<Integer>::max())
             : "";
}

/// Rules for the options of all commands. CLI11's own checks let a nan pass, and print the largest
/// double in 309 digits. An empty value is mostly an unset variable of a script.
void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();  // "FLOAT:POSITIVE"
    if (type.ends_with(":POSITIVE")) {
      option->get_validator()->operation([](const std::string& text) {
        return check_number(text, "a number above 0", [](double number) { return number > 0; });
      });
    } else if (type.ends_with(":NONNEGATIVE")) {
      option->get_validator()->operation([](const std::string& text) {
        return check_number(text, "a number of at least 0",
                            [](double number) { return number >= 0; });
      });
    } else if (type.starts_with("FLOAT")) {
      option->check([](const std::string& text) {
        return check_number(text, "a finite number", [](double) { return true; });
      });
    }
    if (type.starts_with("INT") || type.starts_with("UINT")) {
      option->check(type.starts_with("U") ? fault_of_integer<uint64_t> : fault_of_integer<int64_t>);
    }
    if (option->nonpositional() && option->get_items_expected_max() > 0) {
      option->check(
          [](const std::string& text) { return std::string(text.empty() ? kEmptyValue : ""); });
    }
  }
  for (CLI::App* command : app.get_subcommands({})) {
    check_values(*command);
  }
}

/// Threads and the parsers of configs crash on a smaller stack, without a word.
void check_stack() {
  constexpr rlim_t kLeast = 512U << 10U;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    check(limit.rlim_cur >= kLeast,
          "the stack is limited to {} KiB, and at least {} are needed: run `ulimit -s 8192` first",
          limit.rlim_cur >> 10U, kLeast >> 10U);
  }
}

int run(int argc, char** argv) {
  check_stack();
  CLI::App app("Trains pruned neural networks in parallel.", "espalier");
  app.require_subcommand(0, 1);  // a missing one is reported below, a mistyped one by CLI11
  app.failure_message(CLI::FailureMessage::help);
  app.set_version_flag(
      "--version", fmt::format("espalier {} ({})", ESPALIER_VERSION, cli::build_git()),
      "print the version (`espalier info`: the build, its backends and libraries)");
  cli::Action chosen;
  for (const cli::Register add : kSubcommands) {
    add(app, chosen);
  }
  check_values(app);
  check_arguments(std::span(argv, static_cast<size_t>(argc)).subspan(1));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error);  // --help, --version
    }
    cli::print_error(fmt::format("{} (see espalier --help)", error.what()));
    return cli::kUsage;
  }
  if (!chosen) {
    throw Usage("a subcommand is required, for example train (espalier --help lists them)");
  }
  if (!parallel::launched_by_mpi()) {
    cli::explain_lost_data();
  }
  return chosen();
}

}  // namespace

int main(int argc, char** argv) {
  cli::keep_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write
  // GPU streams that share a hardware queue wait for each other, and messages between stages use
  // their own streams (docs/schedules.md). CUDA reads the variable once, at its first call.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    return run(argc, argv);
  } catch (...) {
    const cli::Outcome outcome = cli::outcome_of(std::current_exception());
    cli::print_error(outcome.message);
    cli::write_outcome(outcome);
    return outcome.code;
  }
}
