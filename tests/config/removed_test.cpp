// Keys and values that earlier versions had: configs of old runs stay readable, and a new config
// with one is an error that says what to write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/config/parse.h"
#include "src/config/removed.h"
#include "tests/support/failure.h"

namespace espalier::config::removed_test {
namespace {

using ::testing::HasSubstr;

TEST(RemovedKeys, OldDefaultsAreIgnored) {
  const io::Config config = parse("[train]\nfp8 = false\nsteps = 7\n", "old.toml");
  EXPECT_EQ(config.train.steps, 7);
}

TEST(RemovedKeys, OtherValuesNameTheReplacement) {
  EXPECT_THAT(failure_of([] { parse("[train]\n\nfp8 = true\n", "new.toml"); }),
              AllOf(HasSubstr("new.toml:3"), HasSubstr("train.fp8 was removed"),
                    HasSubstr("train.dtype = \"bf16\"")));
  EXPECT_THAT(failure_of([] { parse("", "new.toml", std::vector<std::string>{"train.fp8=true"}); }),
              HasSubstr("--set train.fp8=true: train.fp8 was removed"));
  EXPECT_THAT(failure_of([] { parse("[parallel]\ncodec = \"powersgd:4\"\n", "new.toml"); }),
              AllOf(HasSubstr("new.toml:2"), HasSubstr("\"powersgd\": this value was removed"),
                    HasSubstr("maxmin:4")));
}

/// A codec's text says these.
TEST(RemovedKeys, ThoseOfCodecs) {
  const std::string defaults =
      "[parallel]\nbits = 0\nbucket = 0\ncodec_meta = \"fp32\"\ncodec_every = 100\n"
      "codec_candidates = [\"fp32\", \"fp8-e5m2\", \"table:1\"]\ncodec_trial = 20\n"
      "codec_budget = 1.0\ncodec_error = \"auto\"\ncodec_goal = \"bytes\"\ncodec = \"sign\"\n";
  EXPECT_EQ(parse(defaults, "old.toml").parallel.codec.fallback, "sign");
  EXPECT_THAT(failure_of([] { parse("[parallel]\ncodec_every = 50\n", "new.toml"); }),
              AllOf(HasSubstr("parallel.codec_every was removed"), HasSubstr("adaptive:EVERY")));
}

/// The program chooses these.
TEST(RemovedKeys, ThoseThatNoUserNeeds) {
  const io::Config config = parse(
      "[parallel]\nin_flight = 0\ndrain_every = 100\npipeline = 2\n[pruning]\ndistance = 0.1\n"
      "penalty = 0.01\n[sparse]\nfile_index = \"auto\"\n[train]\nbase_density = 1.0\n",
      "old.toml");
  EXPECT_EQ(config.parallel.pipeline, 2);
  for (const std::string setting :
       {"parallel.in_flight=2", "parallel.drain_every=3", "pruning.distance=0.2",
        "pruning.penalty=0.1", "sparse.file_index=bitmap", "train.base_density=0.5"}) {
    EXPECT_THAT(failure_of([&] { parse("", "new.toml", std::vector{setting}); }),
                HasSubstr("was removed: leave it out"));
  }
}

/// Checkpoints and run directories: their weights and results stay readable.
TEST(RemovedKeys, SavedConfigsLeaveThemOut) {
  const io::Config config = parse_saved(
      "[train]\nfp8 = true\nsteps = 7\n[parallel]\ncodec = \"powersgd:4\"\nschedule = \"zb-h2\"\n"
      "[pruning]\nmethod = \"synflow\"\nsparsity = 0.7\nrounds = 9\n",
      "old.h5 (config)");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.pruning.method, "none");
  EXPECT_EQ(config.pruning.sparsity, 0.7);
  EXPECT_EQ(config.parallel.codec.fallback, io::Config().parallel.codec.fallback);
  EXPECT_EQ(config.parallel.schedule, io::Config().parallel.schedule);
  EXPECT_EQ(
      parse_saved("[parallel]\ncodec = {default = \"bf16\", \"head.*\" = \"powersgd\"}\n", "old")
          .parallel.codec.fallback,
      io::Config().parallel.codec.fallback);
  EXPECT_THAT(failure_of([] { parse_saved("[train]\nfb8 = true\n", "old.h5"); }),
              HasSubstr("unknown key"));
}

}  // namespace
}  // namespace espalier::config::removed_test
