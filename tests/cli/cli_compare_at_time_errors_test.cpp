// Errors of espalier compare-at-time before it trains.
#include "tests/support/program.h"

namespace espalier::cli_compare_at_time_errors_test {
namespace {

using CliCompareAtTimeErrors = ProgramTest;

TEST_F(CliCompareAtTimeErrors, BadInputTrainsNothing) {
  for (const auto& [options, code, words] : std::vector<std::tuple<std::string, int, std::string>>{
           {"--seconds 0", 2, "a number above 0"},
           {"--seeds 0", 2, "--seeds"},
           {"--launcher 'a | b'", 2, "quote"},
           {"--set train.seed=9007199254740990", 1, "--seeds"},
           {"--set optimizer.rate=1", 1, "optimizer.rate"},
           {"--set pruning.method=wanda", 1, "is not for runs"},
           {"--init nothing.h5", 1, "nothing.h5"},
           {"--out text.txt", 1, "text.txt"}}) {
    here.fails("compare-at-time c.toml " + options, code, words);
    EXPECT_FALSE(here.has("run-at-time/trial")) << options;
  }
  here.shell("mkdir run-at-time && touch run-at-time/metrics.jsonl");
  here.fails("compare-at-time c.toml", 1, "is the directory of a run");
}

}  // namespace
}  // namespace espalier::cli_compare_at_time_errors_test
