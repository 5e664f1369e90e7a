// Every key of the schema in runs in which it has no effect: it is an error or is named, and no bit
// of the run changes.
#include <set>

#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/config/schema.h"
#include "tests/support/image_files.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::train::unused_keys_test {
namespace {

using ::testing::Contains;
using ::testing::StartsWith;
using namespace espalier::testing;

/// A run in which some keys have no effect.
struct Base {
  std::string name;
  io::Config config;
  int ranks = 1;

  config::RunFacts facts() const {
    return {.pruned = config.pruning.prunes(), .replicas = ranks, .stages = 1};
  }
};

/// Sets a key to a value other than its default.
struct Change {
  const config::Field& field;

  std::string choice(const std::string& now) const {
    for (const config::Choice& one : field.limits.choices) {
      // The links of devices are not there.
      if (one.name != now && one.name != "nccl") {
        return one.name;
      }
    }
    return "other";
  }
  void operator()(bool* value) const { *value = !*value; }
  void operator()(int64_t* value) const {
    const std::string other = choice(fmt::format("{}", *value));
    *value = field.limits.choices.empty() ? *value + 1 : std::stoll(other);
  }
  void operator()(double* value) const { *value = *value == 0 ? 0.25 : *value / 2; }
  void operator()(std::string* value) const { *value = choice(*value); }
  void operator()(std::vector<std::string>* value) const { *value = {choice("fp32"), "fp16"}; }
  void operator()(std::vector<int64_t>* value) const { *value = {7}; }
  void operator()(std::vector<double>* value) const { *value = {0.5}; }
  void operator()(io::Patterned* value) const { value->fallback = choice(value->fallback); }
};

io::Config images(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  config.model.kind = "mlp";
  config.model.hidden = {8};
  config.data = write_images(dir / "", 40, 4);
  return config;
}

std::vector<Base> bases(const TempDir& dir) {
  io::Config gpt = tiny_config(dir);
  apply_settings(gpt,
                 "train.steps=3 train.eval_batches=1 train.checkpoint_every=-1 "
                 "train.parametrization=standard optimizer.warmup_steps=1 run.trace=false");
  std::vector<Base> all{{"gpt", gpt}, {"two ranks", gpt, 2}, {"images", images(dir)}};
  all.back().config.train.steps = 3;
  const auto with = [&](const std::string& name, const std::vector<std::string>& settings) {
    all.push_back({name, gpt});
    for (const std::string& setting : settings) {
      config::apply_override(all.back().config, setting);
    }
  };
  with("llama", {"model.kind=decoder"});
  with("opt", {"model.kind=decoder", "model.family=opt", "model.mlp_width=40"});
  with("validation", {"data.validation_fraction=0.1"});
  write_text(dir / "validation.txt", 400, 2);
  all.back().config.data.validation = {(dir / "validation.txt").string()};
  with("sgd", {"optimizer.kind=sgd", "optimizer.schedule=constant"});
  with("lion", {"optimizer.kind=lion"});
  for (const std::string method :
       {"magnitude", "random", "nm", "block", "set", "movement", "snip", "early-bird"}) {
    with(method, {"pruning.method=" + method});
    io::PruningConfig& pruning = all.back().config.pruning;
    pruning.sparsity = 0.5;
    pruning.at_step = method == "movement" ? 1 : -1;
    pruning.to_step = method == "early-bird" ? 7 : method == "set" ? 2 : -1;
    all.back().config.train.steps = method == "early-bird" ? 8 : 3;
    pruning.every = method == "early-bird" ? 1 : 0;
  }
  return all;
}

using UnusedKeys = RunTest;

TEST_F(UnusedKeys, AreErrorsOrNamedAndChangeNoBit) {
  std::set<std::string> without_effect;
  for (const Base& base : bases(dir)) {
    config::validate(base.config);
    const Outcome before = run(base.config, base.ranks);
    for (const config::Field* row : config::members()) {
      const config::Field& field = *row;
      if (config::has_effect(field, base.config, base.facts())) {
        continue;
      }
      const std::string what = base.name + ", " + field.key();
      io::Config changed = base.config;
      std::visit(Change{field}, field.slot(changed));
      const bool first = without_effect.insert(field.key()).second;
      try {
        config::validate(changed);
      } catch (const Failure& failure) {
        EXPECT_THAT(failure.what(), HasSubstr(field.of_key.empty() ? field.name : field.of_key))
            << what;
        continue;
      }
      EXPECT_THAT(config::keys_without_effect(changed, base.facts()),
                  Contains(StartsWith(field.key() + " (only ")))
          << what;
      if (first || (field.section == "pruning" && base.config.pruning.prunes())) {
        EXPECT_EQ(run(changed, base.ranks), before) << what;
      }
    }
  }
  for (const config::Field* row : config::members()) {
    EXPECT_EQ(without_effect.contains(row->key()), !row->effect.where.empty() || !row->of.empty())
        << row->key();
  }
}

/// The other way round: a key is not named where it changes the run.
TEST_F(UnusedKeys, AreNotNamedWhereTheyHaveAnEffect) {
  for (const Base& base : bases(dir)) {
    const Outcome before = run(base.config, base.ranks);
    for (const std::string key :
         {"optimizer.beta1", "optimizer.momentum", "optimizer.min_lr", "pruning.sparsity",
          "pruning.n", "pruning.scope", "parallel.codec", "model.norm", "model.hidden"}) {
      const config::Field& field =
          *config::find_member(key.substr(0, key.find('.')), key.substr(key.find('.') + 1));
      io::Config changed = base.config;
      std::visit(Change{field}, field.slot(changed));
      if (field.name == "scope") {
        changed.pruning.scope = "layer";
      }
      try {
        config::validate(changed);
      } catch (const Failure&) {
        continue;
      }
      if (run(changed, base.ranks) == before) {
        continue;
      }
      EXPECT_THAT(config::keys_without_effect(changed, base.facts()),
                  Not(Contains(StartsWith(field.key()))))
          << base.name;
    }
  }
}

TEST_F(UnusedKeys, ARunNamesThemAtItsStart) {
  apply_settings(config, "train.steps=1 optimizer.offload=true parallel.codec_min_size=64");
  std::string notes;
  run(config, 1, notes);
  EXPECT_THAT(notes, (AllOf(HasSubstr("without effect in this run"),
                            HasSubstr("optimizer.offload (only on a GPU)"),
                            HasSubstr("parallel.codec_min_size (only"))));
  config.sparse.storage.patterns = {{"head.*", "tiles"}};
  EXPECT_THAT(config::keys_without_effect(config, {.on_device = true, .pruned = true}),
              Contains(StartsWith("sparse.storage (only with pruned weights; \"tiles\" only on")));
  EXPECT_THAT(config::keys_without_effect(config, {.pruned = true}),
              Not(Contains(StartsWith("sparse.storage"))));
}

}  // namespace
}  // namespace espalier::train::unused_keys_test
