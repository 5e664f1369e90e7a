// Asynchronous pipelines: the runner over ranks equals the delay injector on one rank to the bit,
// and both equal a training loop written by hand from the formulas, for every method of weight
// prediction.
#include <cmath>

#include "src/config/parse.h"
#include "src/optim/prediction.h"
#include "src/optim/schedule.h"
#include "src/train/stage/layout.h"
#include "tests/support/failure.h"
#include "tests/support/grid.h"
#include "tests/support/settings.h"

namespace espalier::async_test {
namespace {

using namespace testing;

/// All registered methods; 2bw needs updates of several micro-batches.
std::vector<std::string> predictions(bool with_previous = false) {
  std::vector<std::string> found;
  for (const optim::PredictionEntry* entry : optim::predictions()) {
    if (with_previous || !entry->previous) {
      found.emplace_back(entry->name);
    }
  }
  return found;
}

io::Config config_for(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  apply_settings(config,
                 "model.layers=4 train.global_batch=3 train.steps=14 parallel.schedule=async "
                 "parallel.check_every=0");
  return config;
}

/// Layers of each stage: whole layers 0 … 5 of the tiny network.
std::vector<int64_t> partition_of(int stages) {
  return stages == 2 ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{2, 1, 3};
}

io::Config over(io::Config config, int stages) {
  config.parallel.pipeline = stages;
  config.parallel.partition = partition_of(stages);
  return config;
}

io::Config injected(io::Config config, int stages) {
  config.parallel.delay_stages = stages;
  config.parallel.partition = partition_of(stages);
  return config;
}

struct Async : RunTest {
  Async() { config = config_for(dir); }
};

TEST_F(Async, OneStageIsTheSynchronousRun) {
  for (const std::string prediction : {"none", "2bw", "spectrain"}) {
    config = config_for(dir);
    config.train.micro_batch = 1;
    config.parallel.weight_prediction = prediction;
    const Outcome async = run_grid(config, 1);
    apply_settings(config, "parallel.schedule=auto parallel.weight_prediction=none");
    expect_equal(async, run_grid(config, 1));
  }
}

TEST_F(Async, RanksEqualTheInjector) {
  for (const std::string& prediction : predictions()) {
    for (const std::string kind : {"adamw", "sgd"}) {
      for (const std::string storage : {"dense", "sparse"}) {
        config = config_for(dir);
        apply_settings(
            config,
            fmt::format("parallel.weight_prediction={} optimizer.kind={} optimizer.clip=0.1 "
                        "sparse.storage={} pruning.method=magnitude pruning.at_step=5",
                        prediction, kind, storage));
        config.train.dtype = storage == "sparse" ? "bf16" : "fp32";
        config.optimizer.state_bits = storage == "sparse" ? 8 : 32;
        SCOPED_TRACE(fmt::format("{} {} {}", prediction, kind, storage));
        expect_equal(run_grid(over(config, 3), 3), run_grid(injected(config, 3), 1));
      }
    }
  }
}

TEST_F(Async, UpdatesOfSeveralMicroBatches) {
  for (const std::string& prediction : predictions(true)) {
    for (const std::string recompute : {"none", "full"}) {
      config = config_for(dir);
      config.parallel.weight_prediction = prediction;
      apply_settings(config, "train.global_batch=6 train.micro_batch=2");
      apply_settings(config, fmt::format("train.recompute={} model.dropout=0.1", recompute));
      SCOPED_TRACE(prediction + " " + recompute);
      expect_equal(run_grid(over(config, 3), 3), run_grid(injected(config, 3), 1));
    }
  }
}

TEST_F(Async, ReplicasSumEachStage) {
  for (const std::string& prediction : predictions()) {
    config = config_for(dir);
    config.parallel.weight_prediction = prediction;
    apply_settings(config, "train.global_batch=4 parallel.check_every=5");
    SCOPED_TRACE(prediction);
    const Outcome injector = run_grid(injected(config, 2), 2);
    expect_equal(run_grid(over(config, 2), 4), injector);
    config.train.micro_batch = 2;
    const Outcome alone = run_grid(injected(config, 2), 2);
    EXPECT_THAT(alone.losses, AreNear(injector.losses, 1e-5));
  }
}

TEST_F(Async, MasksChangeBetweenDrains) {
  for (const std::string method : {"rigl", "magnitude"}) {
    config = config_for(dir);
    config.parallel.weight_prediction = "spectrain";
    config.pruning.method = method;
    apply_settings(config, "pruning.sparsity=0.8 sparse.storage=expanded");
    if (method == "rigl") {
      apply_settings(config, "pruning.to_step=12 pruning.every=4");
    } else {
      apply_settings(config, "pruning.from_step=2 pruning.to_step=10 pruning.every=3");
    }
    SCOPED_TRACE(method);
    expect_equal(run_grid(over(config, 2), 2), run_grid(injected(config, 2), 1));
  }
}

/// The pipeline drains at checkpoints, so a run that resumes from one gives the same result.
TEST_F(Async, ResumesAtADrainWithoutABreak) {
  apply_settings(config, "parallel.weight_prediction=spectrain train.checkpoint_every=6");
  const Outcome whole = run_grid(over(config, 2), 2);
  run_grid(over(config, 2), 2, {.stop_after = 6});
  Outcome resumed = run_grid(injected(config, 2), 1, {.resume = "auto"});
  EXPECT_EQ(resumed.losses.size(), 8U);
  resumed.losses = whole.losses;
  expect_equal(resumed, whole);
}

/// Also where nothing reads the state. A drain changes bits: delays begin at 0 again.
TEST_F(Async, DrainsAtFixedSteps) {
  config = injected(config_for(dir), 2);
  config.train.steps = train::kDrainEvery + 8;
  const Outcome seldom = run_grid(config, 1);
  config.train.eval_every = train::kDrainEvery;
  expect_equal(run_grid(config, 1), seldom);
  config.train.eval_every = train::kDrainEvery / 2;
  EXPECT_NE(run_grid(config, 1).losses, seldom.losses);
}

/// A loop over micro-batches that keeps the weights of every update.
class ByHand {
 public:
  ByHand(const io::Config& config, int stages)
      : config_(config),
        stages_(stages),
        source_(train::open_source(config, nullptr)),
        stream_(arena_, 1),
        stage_(config, source_->problem(), stream_, kernels::by_name("auto"),
               {.micro_batch = config.train.global_batch}) {
    stage_.store().initialise(static_cast<uint64_t>(config.train.seed));
    const auto layers = model::make_layers(config.model, source_->problem());
    size_t first = 0;
    for (int k = 0; k < stages; ++k) {
      const size_t end =
          first + static_cast<size_t>(config.parallel.partition.at(static_cast<size_t>(k)));
      const std::vector<train::PartShape> part{{.first = first, .end = end}};
      for (const size_t number : train::parameters_of(layers, part)) {
        stage_of_[stage_.store().parameters()[number].spec.name] = k;
      }
      first = end;
    }
    for (const sparse::Parameter& parameter : stage_.store().parameters()) {
      const std::vector<float> start = stage_.store().master(parameter);
      const std::vector<double> zero(start.size(), 0);
      history_[parameter.spec.name] = {{{start.begin(), start.end()}, zero, zero}};
    }
  }

  Outcome run() {
    Outcome outcome;
    for (int64_t i = 0; i < config_.train.steps; ++i) {
      outcome.losses.push_back(train(i));
    }
    for (const auto& [name, states] : history_) {
      outcome.values[name] = {states.back().w.begin(), states.back().w.end()};
    }
    return outcome;
  }

 private:
  struct State {
    std::vector<double> w, m, v;
  };

  /// The weights of `name` after `done` updates, predicted `ahead` updates further.
  std::vector<double> ahead(const std::string& name, int64_t done, int64_t ahead) {
    const State& state = history_.at(name).at(static_cast<size_t>(done));
    const io::OptimizerConfig& o = config_.optimizer;
    std::vector<double> w = state.w;
    if (done == 0) {
      return w;
    }
    const bool adam = o.kind == "adamw";
    auto lr = [&](int64_t step) { return optim::learning_rate(o, step, config_.train.steps); };
    auto power = [](double base, int64_t t) { return std::pow(base, static_cast<double>(t)); };
    for (size_t e = 0; e < w.size(); ++e) {
      for (int64_t j = 1; j <= ahead; ++j) {
        if (adam) {
          w[e] -= lr(done) * (state.m[e] / (1 - power(o.beta1, done))) /
                  (std::sqrt(state.v[e] / (1 - power(o.beta2, done))) + o.epsilon);
        } else {
          w[e] -= lr(done) * state.m[e];
        }
      }
    }
    return w;
  }

  void set_weights(int64_t i, bool backward) {
    const std::string& mode = config_.parallel.weight_prediction;
    sparse::Store& store = stage_.store();
    for (sparse::Parameter& parameter : store.parameters()) {
      const std::string& name = parameter.spec.name;
      const int64_t k = stage_of_.at(name);
      int64_t done = std::max<int64_t>(0, i - (stages_ - 1 - k));
      int64_t s = 0;
      if (mode == "2bw") {
        done = std::max<int64_t>(0, i - 1);
      } else if (mode == "spectrain") {
        s = backward ? k / 2 : k / 2 + (i - done);
        done = backward ? i : done;
      } else if (mode == "none") {
        done = backward ? i : done;
      }
      const std::vector<double> w = ahead(name, done, s);
      store.set_values(parameter, std::vector<float>(w.begin(), w.end()));
    }
  }

  double train(int64_t i) {
    const int64_t samples = config_.train.global_batch;
    const double rows = static_cast<double>(samples * source_->problem().rows);
    train::Part& part = *stage_.parts().front();
    const train::Part::Feed feed = part.open(0, samples);
    source_->train(i, 0, feed.inputs, feed.targets);
    set_weights(i, false);
    part.forward(0, {.samples = samples, .step = i, .loss_scale = 1 / rows}, true);
    const double loss = part.take_losses().front().sum;
    set_weights(i, true);
    part.backward(0, false, {});
    for (const sparse::Parameter& parameter : stage_.store().parameters()) {
      update(parameter, i);
    }
    return loss / rows;
  }

  void update(const sparse::Parameter& parameter, int64_t i) {
    const io::OptimizerConfig& o = config_.optimizer;
    const double lr = optim::learning_rate(o, i, config_.train.steps);
    const double decay = parameter.spec.decay ? o.weight_decay : 0;
    const auto gradient = stage_.store().part(stage_.store().gradient(), parameter).span<float>();
    State next = history_.at(parameter.spec.name).back();
    for (size_t e = 0; e < next.w.size(); ++e) {
      const double g = static_cast<double>(gradient[e]);
      double& w = next.w[e];
      if (o.kind == "adamw") {
        const auto t = static_cast<double>(i + 1);
        next.m[e] = o.beta1 * next.m[e] + (1 - o.beta1) * g;
        next.v[e] = o.beta2 * next.v[e] + (1 - o.beta2) * g * g;
        w -= lr * (next.m[e] / (1 - std::pow(o.beta1, t)) /
                       (std::sqrt(next.v[e] / (1 - std::pow(o.beta2, t))) + o.epsilon) +
                   decay * w);
      } else {
        next.m[e] = o.momentum * next.m[e] + g + decay * w;
        w -= lr * next.m[e];
      }
    }
    history_.at(parameter.spec.name).push_back(std::move(next));
  }

  io::Config config_;
  int stages_;
  std::unique_ptr<train::Source> source_;
  Arena arena_;
  Stream stream_;
  train::Stage stage_;
  std::map<std::string, int> stage_of_;
  std::map<std::string, std::vector<State>> history_;  ///< [updates]
};

TEST_F(Async, TheInjectorFollowsTheFormulas) {
  std::vector<std::pair<std::string, int>> modes{{"2bw", 2}};
  for (const std::string& prediction : predictions()) {
    modes.emplace_back(prediction, 3);
  }
  std::map<std::string, Outcome> seen;
  for (const std::string kind : {"adamw", "sgd"}) {
    for (const auto& [prediction, stages] : modes) {
      SCOPED_TRACE(kind + " " + prediction);
      config = injected(config_for(dir), stages);
      config.train.steps = 20;
      config.parallel.weight_prediction = prediction;
      apply_settings(config, fmt::format("optimizer.kind={} optimizer.clip=0", kind));
      config.optimizer.epsilon = 1e-3;  // small gradients must not determine signs
      config.optimizer.lr = kind == "sgd" ? 0.05 : 3e-3;
      const Outcome got = run_grid(config, 1);
      const Outcome want = ByHand(config, stages).run();
      EXPECT_THAT(got.losses, AreNear(want.losses, 2e-5));
      EXPECT_LT(largest_difference(want, got), 5e-5);
      for (const auto& [other, outcome] : seen) {
        EXPECT_NE(outcome.losses, got.losses) << other << " is something else";
      }
      seen[kind + prediction] = got;
    }
  }
}

TEST_F(Async, NoRankNeedsMoreThanWasPlanned) {
  for (const std::string& prediction : predictions()) {
    for (const int stages : {1, 3}) {
      config = config_for(dir);
      config.parallel.weight_prediction = prediction;
      config = stages == 1 ? injected(config, 3) : over(config, 3);
      apply_settings(config, "pruning.method=magnitude pruning.at_step=3 train.dtype=bf16");
      SCOPED_TRACE(fmt::format("{} {}", prediction, stages));
      expect_within_plan(config, stages);
    }
  }
}

TEST_F(Async, SettingsThatDoNotFitNameTheFix) {
  struct Row {
    int stages;
    std::string settings, words;
  };
  for (const auto& [stages, settings, words] : std::vector<Row>{
           {2, "model.tie_embeddings=true", "model.tie_embeddings = false"},
           {2, "parallel.zero=1", "parallel.zero = 0"},
           {2,
            "optimizer.kind=sgd optimizer.momentum=0 "
            "parallel.weight_prediction=spectrain",
            "momentum"},
           {3, "parallel.weight_prediction=2bw", "at least 2 micro-batches"},
           {2, "parallel.schedule=1f1b parallel.weight_prediction=stash", "schedule = \"async\""},
           {2, "parallel.delay_stages=2", "simulates a pipeline on one rank"}}) {
    io::Config made = over(config, stages);
    apply_settings(made, settings);
    const auto train = [&] {
      config::validate(made);
      run_grid(made, stages);
    };
    EXPECT_THAT(failure_of(train), HasSubstr(words)) << settings;
  }
}

/// A loss of NaN ends the run before it reaches the weights.
TEST_F(Async, DivergenceNamesTheStep) {
  apply_settings(config,
                 "optimizer.lr=1e6 optimizer.clip=0 optimizer.kind=sgd optimizer.warmup_steps=0");
  EXPECT_THAT(failure_of([&] { run_grid(over(config, 2), 2); }),
              HasSubstr("stopped before the update"));
}

}  // namespace
}  // namespace espalier::async_test
