#pragma once
// The parts of `espalier plan-communication`.
#include <functional>
#include <memory>

#include "src/cli/commands.h"

namespace espalier::cli {

/// Prints the tables of Dettmers' paper: each printed number beside the one that the model computes
/// from the paper's inputs. Default output of the command without options.
void print_paper(bool json);

/// --json, shared by the command and its subcommands.
using JsonFlag = std::shared_ptr<bool>;
void add_json(CLI::App& command, const JsonFlag& json);

/// `ranks`: predicts Espalier's data-parallel step.
void register_plan_ranks(CLI::App& plan, Action& chosen, const JsonFlag& json);

/// Validators of options: finite and at least zero; above zero; from `low` to `high`. They reject
/// NaN, which CLI11's validators accept.
CLI::Validator at_least_zero();
CLI::Validator above_zero();
CLI::Validator between(double low, double high);

/// Runs `run` and returns 0. All inputs of a prediction come from the command line, so a Failure is
/// reported as wrong usage.
int as_usage(const std::function<void()>& run);

}  // namespace espalier::cli
