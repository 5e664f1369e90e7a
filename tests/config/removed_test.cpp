// Keys and values that earlier versions had: configs of old runs stay readable, and a new config
// with one is an error that says what to write.

#include "src/config/removed.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "tests/support/failure.h"

namespace espalier::config::removed_test {
namespace {

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

/// A storage, which the option `tiles` was of for a while.
TEST(RemovedKeys, KeptTiles) {
  EXPECT_EQ(parse("[sparse]\nkeep_tiles = false\n", "old.toml").sparse.storage.fallback, "auto");
  for (const std::string text :
       {"keep_tiles = true\nstorage = \"sparse\"", "storage = \"sparse:tiles\"",
        "storage = {default = \"sparse:tiles\", \"head.*\" = \"dense\"}",
        "storage = {\"head.*\" = \"sparse:tiles\"}"}) {
    EXPECT_THAT(failure_of([&] { parse("[sparse]\n" + text + "\n", "new.toml"); }),
                AllOf(HasSubstr("was removed: write "), HasSubstr("\"tiles\"")))
        << text;
    EXPECT_THAT(parse_saved("[sparse]\n" + text + "\n", "old.h5").sparse.storage.fallback,
                ::testing::AnyOf("auto", "sparse"))
        << text;
  }
  EXPECT_THAT(failure_of([] {
                parse("", "new.toml", std::vector<std::string>{"sparse.storage=auto:tiles"});
              }),
              HasSubstr("was removed: write \"auto\""));
  EXPECT_THAT(
      failure_of([] { parse("", "new.toml", std::vector<std::string>{"sparse.keep_tiles=true"}); }),
      HasSubstr("sparse.keep_tiles was removed: write sparse.storage = \"tiles\""));
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

/// Another key's text says these.
TEST(RemovedKeys, ThoseThatBecameOptions) {
  const io::Config config = parse(
      "[pruning]\nn = 2\nm = 4\n[optimizer]\ndecay_at = []\n[model]\nrotary_scaling = \"none\"\n"
      "[parallel]\noverlap = true\nbucket_mb = 0\npipeline = 2\n",
      "old.toml");
  EXPECT_EQ(config.parallel.pipeline, 2);
  for (const auto& [setting, replacement] : std::vector<std::pair<std::string, std::string>>{
           {"pruning.m=8",
            "pruning.m is no key: leave it out, or write pruning.method = \"nm:m=8\""},
           {"optimizer.decay_at=[3, 4]",
            "leave it out, or write optimizer.schedule = \"step:at=3,4\""},
           {"model.rotary_base=500", "write model.rotary = \"none:500\""},
           {"model.rotary_scaling=yarn", "was removed: write it as model.rotary"},
           {"parallel.delay_stages=4",
            "leave it out, or write parallel.schedule = \"async:delay=4\""},
           {"run.graphs=false", "run.graphs is no key: leave it out"}}) {
    EXPECT_THAT(failure_of([&] { parse("", "new.toml", std::vector{setting}); }),
                HasSubstr(replacement));
  }
  EXPECT_THAT(failure_of([] { parse("[pruning]\nm = 8\n", "new.toml"); }),
              HasSubstr("new.toml:2: pruning.m is no key"));
}

/// All old settings together, beside what the config says.
TEST(RemovedKeys, ReplacementsKeepTheRestOfTheConfig) {
  for (const auto& [text, replacement] : std::vector<std::pair<std::string, std::string>>{
           {"[pruning]\nmethod = \"nm\"\nn = 1\nm = 8\n", "pruning.method = \"nm:1:8\""},
           {"[pruning]\nmethod = \"set\"\ndrop_fraction = 0.2\n", "pruning.method = \"set:0.2\""},
           {"[pruning]\nmethod = \"nm:1:8\"\nn = 2\n", "pruning.method = \"nm:m=8\""},
           {"[optimizer]\nschedule = \"step\"\ndecay_at = [3, 4]\ndecay_factor = 0.3\n",
            "optimizer.schedule = \"step:0.3:3,4\""},
           {"[model]\nrotary_scaling = \"yarn\"\nrotary_factor = 4.0\nrotary_context = 8\n",
            "model.rotary = \"yarn:4:8\""},
           {"[model]\nfamily = \"gemma\"\nactivation = \"relu\"\n",
            "model.family = \"gemma:relu\""}}) {
    EXPECT_THAT(failure_of([&] { parse(text, "new.toml"); }),
                HasSubstr("is no key: write " + replacement));
  }
  EXPECT_THAT(
      failure_of([] { parse("[train]\ndtype = \"bf16\"\ntf32 = true\n", "new.toml"); }),
      HasSubstr("train.tf32 is no key: leave it out, or write train.dtype = \"fp32:tf32\""));
  EXPECT_THAT(failure_of([] {
                parse("[pruning]\nmethod = \"nm:1:8\"\n", "new.toml",
                      std::vector<std::string>{"pruning.m=4"});
              }),
              HasSubstr("write pruning.method = \"nm:1\""));
}

TEST(Options, AreGivenOnceAndWithoutLabelsFirst) {
  for (const auto& [method, fault] : std::vector<std::pair<std::string, std::string>>{
           {"nm:n=1:n=3", "gives n twice"},
           {"nm:1:n=3", "gives n twice"},
           {"nm:m=8:3", "write a label before \"3\""}}) {
    EXPECT_THAT(failure_of([&] { parse("[pruning]\nmethod = \"" + method + "\"\n", "new.toml"); }),
                HasSubstr(fault));
  }
}

TEST(RemovedKeys, SavedConfigsKeepThoseThatBecameOptions) {
  const io::Config config = parse_saved(
      "[model]\nkind = \"decoder\"\nrotary_base = 500.0\nrotary_factor = 2.0\n"
      "rotary_scaling = \"linear\"\nfamily = \"neox\"\nbiases = \"mlp\"\n[optimizer]\n"
      "decay_at = [3, 4]\nschedule = \"step\"\n[pruning]\nm = 8\nmethod = \"nm\"\nn = 1\n[sparse]\n"
      "keep_tiles = true\nstorage = {default = \"sparse\", \"head.*\" = \"dense\"}\n"
      "[parallel]\ncodec_min_size = 64\n",
      "old.h5");
  EXPECT_EQ(toml_value(*find_field("model", "rotary"), config), "\"linear:2:base=500\"");
  EXPECT_EQ(toml_value(*find_field("model", "family"), config), "\"neox:biases=mlp\"");
  EXPECT_EQ(toml_value(*find_field("optimizer", "schedule"), config), "\"step:at=3,4\"");
  EXPECT_EQ(toml_value(*find_field("pruning", "method"), config), "\"nm:1:8\"");
  EXPECT_EQ(toml_value(*find_field("sparse", "storage"), config),
            "{default = \"sparse\", \"head.*\" = \"dense\"}")
      << "sparse.keep_tiles changed no bit";
  EXPECT_EQ(config.parallel.codec_min_size, 64);
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
