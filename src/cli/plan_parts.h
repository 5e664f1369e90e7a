#pragma once
// The parts of `espalier plan-communication`.
#include <functional>
#include <memory>

#include "src/cli/commands.h"

namespace espalier::cli {

/// The tables of Dettmers' paper, each printed number beside the one that the model computes from
/// the paper's inputs: what is printed when nothing is asked.
void print_paper(bool json);

/// --json, of the command and of its subcommands alike.
using JsonFlag = std::shared_ptr<bool>;
void add_json(CLI::App& command, const JsonFlag& json);

/// `ranks`: our own data-parallel step.
void register_plan_ranks(CLI::App& plan, Action& chosen, const JsonFlag& json);

/// Checks of an option (NaN, which CLI11's own let pass, is refused): a finite number of at least
/// zero; above zero; from `low` to `high`.
CLI::Validator at_least_zero();
CLI::Validator above_zero();
CLI::Validator between(double low, double high);

/// Runs it and returns 0. All that a prediction reads comes from the command line, so what is wrong
/// with it (Failure) is wrong usage.
int as_usage(const std::function<void()>& run);

}  // namespace espalier::cli
