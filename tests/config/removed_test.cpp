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
  EXPECT_THAT(failure_of([] { parse_saved("[train]\nfb8 = true\n", "old.h5"); }),
              HasSubstr("unknown key"));
}

}  // namespace
}  // namespace espalier::config::removed_test
