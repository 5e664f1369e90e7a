#pragma once
// The parts of `espalier plan-communication`.
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

}  // namespace espalier::cli
