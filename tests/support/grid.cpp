#include "tests/support/grid.h"

#include <mutex>

namespace espalier::testing {

Outcome run_grid(const io::Config& config, int ranks, const train::TrainerOptions& options) {
  Outcome all;
  std::mutex mutex;
  parallel::run_ranks(
      ranks,
      [&](parallel::Communicator& comm) {
        train::TrainerOptions mine = options;
        mine.kernels = mine.kernels != nullptr ? mine.kernels : kernels_of_runs();
        if (mine.resume.empty()) {
          mine.resume = "none";
        }
        std::vector<double> losses;
        mine.on_step = [&](const train::StepReport& report) { losses.push_back(report.loss); };
        train::Trainer trainer(config, comm, mine);
        trainer.run();
        const Outcome part = outcome_of(trainer);
        const std::scoped_lock lock(mutex);
        if (comm.rank() == 0) {
          all.losses = losses;
        }
        for (const auto of : {&Outcome::weights, &Outcome::values}) {
          for (const auto& [name, values] : part.*of) {
            const auto known = (all.*of).find(name);
            EXPECT_TRUE(known == (all.*of).end() || known->second == values)
                << name << " differs between ranks";
          }
        }
        all.weights.insert(part.weights.begin(), part.weights.end());
        all.values.insert(part.values.begin(), part.values.end());
        all.moments.insert(part.moments.begin(), part.moments.end());
        all.positions.insert(part.positions.begin(), part.positions.end());
      },
      {.timeout = 60, .while_waiting = while_ranks_wait(), .copy = copy_of_ranks()});
  return all;
}

void expect_equal(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  ASSERT_EQ(got.values.size(), want.values.size());
  for (const auto& [name, values] : want.values) {
    ASSERT_TRUE(got.values.contains(name)) << name;
    EXPECT_EQ(got.positions.at(name), want.positions.at(name)) << name;
    EXPECT_TRUE(got.values.at(name) == values) << name;
    EXPECT_TRUE(got.moments.at(name) == want.moments.at(name)) << name;
  }
}

Outcome expect_resume_is_no_break(io::Config config, int ranks, const std::vector<int64_t>& stops) {
  Outcome whole = run_grid(config, ranks);
  config.run.out += "-in-parts";
  const Outcome last = run_with_breaks(stops, [&](const train::TrainerOptions& options) {
    return run_grid(config, ranks, options);
  });
  EXPECT_EQ(last.losses, whole.losses);
  EXPECT_TRUE(last.values == whole.values);
  EXPECT_TRUE(last.moments == whole.moments);
  EXPECT_EQ(last.val_loss, whole.val_loss);
  return whole;
}

}  // namespace espalier::testing
