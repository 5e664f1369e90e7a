// espalier lottery CONFIG --rounds N --rewind K: lottery tickets with rewinding
// (src/train/run/lottery.h).
#include "src/train/run/lottery.h"

#include "src/cli/commands.h"
#include "src/cli/console.h"
#include "src/cli/train_arguments.h"
#include "src/cli/weights_file.h"
#include "src/report/run_data.h"

namespace espalier::cli {
namespace {

struct LotteryArguments {
  TrainArguments train;
  int64_t rounds = 0;
  int64_t rewind = 0;
};

std::string results_of(const train::Lottery& lottery, int64_t rounds) {
  Rows rows{{"round", "sparsity", "val_loss"}};
  for (int64_t round = 0; round <= rounds; ++round) {
    const report::RunData data = report::read_run(lottery.round_directory(round));
    const auto number = [&](const char* key, int digits) {
      const auto found = report::number_at(data.summary, key);
      return found ? fmt::format("{:.{}f}", *found, digits) : "-";
    };
    rows.push_back({fmt::format("{}", round), number("sparsity", 4), number("final_val_loss", 4)});
  }
  return table(rows);
}

int lottery(const LotteryArguments& arguments) {
  const io::Config config = config_of(arguments.train);
  note_default_network(arguments.train, config);
  const auto rounds_of = [&](train::Lottery::Calls calls) {
    return train::Lottery(config, arguments.rounds, arguments.rewind, std::move(calls));
  };
  rounds_of({});  // wrong settings end before the ranks start
  return on_ranks(config, [&](parallel::Communicator& comm, const auto& on_failure) {
    ExitCode code = kDone;
    Progress progress(true, 0, false);
    const train::Lottery rounds = rounds_of({
        .train =
            [&](const io::Config& run, int64_t step) {
              TrainArguments train = arguments.train;
              train.resume = "auto";
              train.steps = step;
              code = train_on(comm, run, train, on_failure);
              return code == kDone;
            },
        .with_store =
            [](const fs::path& checkpoint, const std::function<void(sparse::Store&)>& body) {
              Weights weights(open_weights(checkpoint, {}));
              body(*weights.store);
            },
        .note = [&](const std::string& note) { progress.note(note); },
    });
    if (rounds.run(comm) && comm.rank() == 0) {
      print(results_of(rounds, arguments.rounds));
    }
    return code;
  });
}

}  // namespace

void register_lottery(CLI::App& app, Action& chosen) {
  auto arguments = std::make_shared<LotteryArguments>();
  CLI::App* command = app.add_subcommand(
      "lottery", "Lottery tickets: train, prune, rewind the weights, and repeat");
  command->footer("The same command again continues. Under mpirun, all rounds run on its ranks.");
  command->add_option("config", arguments->train.config, "TOML file, with pruning.sparsity")
      ->required();
  command->add_option("--rounds", arguments->rounds, "times that the network is pruned")
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_option("--rewind", arguments->rewind, "step to which weights are rewound")
      ->required()
      ->check(CLI::PositiveNumber);
  command->add_option("--set", arguments->train.overrides, "section.key=value")
      ->allow_extra_args(false);
  command->add_option("--out", arguments->train.out, "directory of the rounds, instead of run.out");
  command->callback([arguments, &chosen] { chosen = [arguments] { return lottery(*arguments); }; });
}

}  // namespace espalier::cli
