// espalier: the program. Exit codes: 0 success, 1 failure (file, config, network, peer), 2 wrong
// usage, 3 a bug in Espalier.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "src/cli/commands.h"
#include "src/cli/console.h"
#include "src/core/error.h"

namespace {

using namespace espalier;

constexpr cli::Register kSubcommands[] = {
    cli::register_train,    cli::register_prune, cli::register_inspect, cli::register_eval,
    cli::register_sample,   cli::register_data,  cli::register_convert, cli::register_report,
    cli::register_schedule, cli::register_plan,  cli::register_codec,   cli::register_info};

int run(int argc, char** argv) {
  CLI::App app("Trains pruned neural networks in parallel.", "espalier");
  app.require_subcommand(0, 1);  // a missing one is reported below, a mistyped one by CLI11
  app.failure_message(CLI::FailureMessage::help);
  cli::Action chosen;
  for (const cli::Register add : kSubcommands) {
    add(app, chosen);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error);  // --help
    }
    cli::print_error(fmt::format("{} (see espalier --help)", error.what()));
    return 2;
  }
  if (!chosen) {
    throw Usage("a subcommand is required, for example train (espalier --help lists them)");
  }
  return chosen();
}

}  // namespace

int main(int argc, char** argv) {
  // GPU streams that share a hardware queue wait for each other, and messages between stages use
  // their own streams (docs/schedules.md). CUDA reads the variable once, at its first call.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    return run(argc, argv);
  } catch (const Usage& error) {
    cli::print_error(error.what());
    return 2;
  } catch (const Failure& error) {
    cli::print_error(error.what());
    return 1;
  } catch (const Bug& error) {
    cli::print_error(fmt::format("bug in espalier, please report it: {}", error.what()));
    return 3;
  } catch (const std::bad_alloc&) {
    cli::print_error("out of memory: use a smaller model or micro_batch, or more ranks");
    return 1;
  } catch (const std::exception& error) {
    cli::print_error(fmt::format("bug in espalier, please report it: {}", error.what()));
    return 3;
  }
}
