#pragma once
// The subcommands. Each registers itself with the parser and returns an Action to run when it is
// chosen; the action returns the exit code. Only this folder prints or exits.
#include <CLI/CLI.hpp>
#include <functional>

namespace espalier::cli {

/// Runs a chosen subcommand.
using Action = std::function<int()>;
/// Adds a subcommand to `app`; if the user chooses it, it sets `chosen`.
using Register = void (*)(CLI::App& app, Action& chosen);

void register_train(CLI::App& app, Action& chosen);
void register_prune(CLI::App& app, Action& chosen);
void register_inspect(CLI::App& app, Action& chosen);
void register_eval(CLI::App& app, Action& chosen);
void register_sample(CLI::App& app, Action& chosen);
void register_data(CLI::App& app, Action& chosen);
void register_tokenize(CLI::App& data, Action& chosen);  ///< of data
void register_convert(CLI::App& app, Action& chosen);    ///< import and export
void register_report(CLI::App& app, Action& chosen);
void register_schedule(CLI::App& app, Action& chosen);
void register_plan_communication(CLI::App& app, Action& chosen);  ///< plan-communication
void register_plan(CLI::App& app, Action& chosen);                ///< plan
void register_codec(CLI::App& app, Action& chosen);
void register_info(CLI::App& app, Action& chosen);
void register_supervise(CLI::App& app, Action& chosen);
void register_sweep(CLI::App& app, Action& chosen);
void register_compare_at_time(CLI::App& app, Action& chosen);  ///< compare-at-time

/// Version control state of the build, e.g. "a1b2c3d-dirty".
std::string build_git();

}  // namespace espalier::cli
