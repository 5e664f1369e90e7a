#pragma once
// The parts of `espalier plan-communication`.
#include <functional>

#include "src/cli/commands.h"

namespace espalier::cli {

/// The tables of Dettmers' paper, each printed number beside the one that the model computes from the
/// paper's inputs: what is printed when nothing is asked.
void print_paper(bool json);

/// `ranks`: our own data-parallel step.
void register_plan_ranks(CLI::App& plan, Action& chosen);

/// Runs it and returns 0. All that a prediction reads comes from the command line, so what is wrong with
/// it (Failure) is wrong usage.
int as_usage(const std::function<void()>& run);

}  // namespace espalier::cli
