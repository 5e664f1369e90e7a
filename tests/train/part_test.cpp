// A network cut into parts computes the same bits as the whole one, for any micro-batches in
// flight, with whole and split backwards.
#include "src/train/stage/part.h"

#include <fmt/ranges.h>

#include "src/core/rng.h"
#include "src/model/networks/families.h"
#include "src/train/stage/stage.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::train::part_test {
namespace {

constexpr int64_t kSamples = 3;
constexpr int64_t kMicroBatches = 4;

struct Setting {
  std::string model = "gpt";
  std::string dtype = "fp32";
  std::string recompute = "none";
  std::string storage = "dense";
  bool tied = false;
  bool pruned = false;
  double dropout = 0;

  std::string text() const {
    return fmt::format("{} {} {} {} tied {} pruned {} dropout {}", model, dtype, recompute, storage,
                       tied, pruned, dropout);
  }
};

bool is_family(const std::string& model) {
  return find_or_null(model::families(), model) != nullptr;
}

io::Config config_of(const Setting& setting) {
  io::Config config;
  config.model.kind = setting.model;
  testing::apply_settings(config, "model.layers=3 model.heads=2 model.width=32 model.context=16");
  config.model.hidden = {40, 24, 32};
  config.model.network = {"conv 6 3 norm", "basic 8", "max 2", "wide 6", "norm", "linear 8"};
  config.model.image = {5, 4, 1};
  if (setting.model == "transformer") {
    config.model.kind = "vision";
    config.model.network = {"conv 6 1", "patch 8 1", "2 x transformer 2", "token-mean", "linear 8"};
    config.model.image = {2, 2, 5};
  }
  if (is_family(setting.model)) {
    testing::take_family(config.model, setting.model);
  }
  config.model.tie_embeddings = setting.tied;
  testing::apply_settings(config, fmt::format("model.dropout={} train.dtype={} sparse.storage={}",
                                              setting.dropout, setting.dtype, setting.storage));
  return config;
}

ProblemShape problem_of(const Setting& setting) {
  if (setting.model == "gpt" || is_family(setting.model)) {
    return {.classes = 11, .features = 16, .rows = 16, .input_dtype = DType::int32};
  }
  return {.classes = 11, .features = 20, .rows = 1, .input_dtype = DType::fp32};
}

/// A stage with memory, values, and masks that depend only on names.
struct Owner {
  Owner(const Setting& setting, std::vector<PartShape> parts)
      : stream(arena, 1),
        stage(config_of(setting), problem_of(setting), stream, kernels::by_name("auto"),
              {.micro_batch = kSamples,
               .recompute = model::recompute_by_name(setting.recompute),
               .parts = std::move(parts)}) {
    sparse::Store& store = stage.store();
    store.initialise(5);
    if (!setting.pruned) {
      return;
    }
    std::vector<sparse::Mask> masks = store.masks();
    for (size_t p = 0; p < masks.size(); ++p) {
      const sparse::ParameterSpec& spec = store.parameters()[p].spec;
      for (int64_t i = 0; spec.prunable && i < masks[p].size(); ++i) {
        const auto key = std::hash<std::string>()(spec.name);
        masks[p].set(i, mix(key, static_cast<uint64_t>(i)) % 5 == 0);
      }
    }
    store.set_masks(masks);
  }
  Arena arena;
  Stream stream;
  Stage stage;
};

void fill(const Part::Feed& feed, int64_t number) {
  for (int64_t i = 0; feed.inputs && i < feed.inputs.count(); ++i) {
    const uint64_t bits = mix(static_cast<uint64_t>(number), static_cast<uint64_t>(i));
    if (feed.inputs.dtype == DType::int32) {
      feed.inputs.get<int32_t>()[i] = static_cast<int32_t>(bits % 11);
    } else {
      feed.inputs.get<float>()[i] = static_cast<float>(bits % 1000) / 500 - 1;
    }
  }
  for (int64_t i = 0; feed.targets && i < feed.targets.count(); ++i) {
    feed.targets.get<int32_t>()[i] = static_cast<int32_t>(
        mix(static_cast<uint64_t>(number + 100), static_cast<uint64_t>(i)) % 11);
  }
}

MicroBatch batch_of(int64_t number) {
  return {.samples = kSamples,
          .step = 2,
          .first_sample = number * kSamples,
          .loss_scale = 1.0 / 64,
          .accumulate = number > 0};
}

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;
  bool operator==(const Result&) const = default;
};

void add_gradients(sparse::Store& store, Result& result) {
  for (const sparse::Parameter& parameter : store.parameters()) {
    const Tensor part = store.part(store.gradient(), parameter);
    std::vector<double>& sum = result.gradients[parameter.spec.name];
    sum.resize(static_cast<size_t>(part.count()));  // a tied one is in two stores
    for (int64_t i = 0; i < part.count(); ++i) {
      sum[static_cast<size_t>(i)] += part.dtype == DType::fp32
                                         ? static_cast<double>(part.get<float>()[i])
                                         : static_cast<double>(to_float(part.get<bf16>()[i]));
    }
  }
}

Result run_whole(const Setting& setting) {
  Owner owner(setting, {});
  Result result;
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    fill(owner.stage.parts().front()->open(0, kSamples), i);
    result.losses.push_back(owner.stage.forward_backward(batch_of(i)));
  }
  add_gradients(owner.stage.store(), result);
  return result;
}

/// All forwards through all parts, then all backwards, split in two where `defer` is set.
Result run_parts(const Setting& setting, const std::vector<std::vector<PartShape>>& owners,
                 bool defer) {
  std::vector<std::unique_ptr<Owner>> all;
  std::vector<Part*> parts;
  for (const auto& shapes : owners) {
    all.push_back(std::make_unique<Owner>(setting, shapes));
    for (const auto& part : all.back()->stage.parts()) {
      parts.push_back(part.get());
    }
  }
  std::ranges::sort(parts, {}, [](const Part* part) { return part->shape().first; });
  Result result;
  std::vector<std::byte> in, out;
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    for (Part* part : parts) {
      fill(part->open(i, kSamples), i);
      EXPECT_EQ(in.size(), part->bytes_in());
      out.assign(part->bytes_out(), {});
      part->forward(i, batch_of(i), true, in, out);
      std::swap(in, out);
    }
  }
  for (const Part::Loss& loss : parts.back()->take_losses()) {
    result.losses.push_back(loss.sum);
  }
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    for (size_t p = parts.size(); p-- > 0;) {
      EXPECT_EQ(in.size(), parts[p]->bytes_out());
      out.assign(parts[p]->bytes_in(), {});
      parts[p]->backward(i, defer, {}, in, out);
      std::swap(in, out);
    }
  }
  for (int64_t i = 0; defer && i < kMicroBatches; ++i) {
    for (Part* part : parts) {
      part->backward_weight(i, {});
    }
  }
  for (const auto& owner : all) {
    add_gradients(owner->stage.store(), result);
  }
  return result;
}

PartShape part(size_t first, size_t end) {
  return {.first = first, .end = end, .tapes = kMicroBatches, .deferred = kMicroBatches};
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const std::string recompute : {"none", "selective", "full"}) {
      all.push_back({.dtype = dtype, .recompute = recompute, .dropout = 0.1});
    }
    for (const std::string storage : {"dense", "expanded", "sparse"}) {
      all.push_back({.dtype = dtype, .storage = storage, .pruned = true});
    }
    for (const std::string family : {"llama", "qwen3", "neox", "gemma3"}) {
      all.push_back({.model = family, .dtype = dtype, .dropout = 0.1});
      all.push_back({.model = family, .dtype = dtype, .storage = "sparse", .pruned = true});
    }
    all.push_back({.model = "llama", .dtype = dtype, .recompute = "full"});
    all.push_back({.model = "neox", .dtype = dtype, .recompute = "selective", .dropout = 0.1});
    for (const std::string recompute : {"selective", "full"}) {
      all.push_back(
          {.model = "transformer", .dtype = dtype, .recompute = recompute, .dropout = 0.1});
    }
    all.push_back({.model = "transformer", .dtype = dtype, .storage = "expanded", .pruned = true});
    for (const std::string model : {"mlp", "vision", "transformer"}) {
      all.push_back({.model = model, .dtype = dtype, .dropout = 0.1});
      all.push_back({.model = model, .dtype = dtype, .storage = "sparse", .pruned = true});
    }
  }
  return all;
}

/// The first difference; empty: none.
std::string difference(const Result& one, const Result& other) {
  if (one.losses != other.losses) {
    return fmt::format("losses {} and {}", fmt::join(one.losses, " "),
                       fmt::join(other.losses, " "));
  }
  for (const auto& [name, gradient] : one.gradients) {
    if (!other.gradients.contains(name) || gradient != other.gradients.at(name)) {
      return name;
    }
  }
  return one == other ? "" : "the number of parameters";
}

TEST(Part, CutAnywhereEqualsTheWhole) {
  for (const Setting& setting : settings()) {
    const size_t layers = model::make_layers(config_of(setting).model, problem_of(setting)).size();
    const Result whole = run_whole(setting);
    for (size_t cut = 1; cut < layers; ++cut) {
      for (const bool defer : {false, true}) {
        SCOPED_TRACE(fmt::format("{} cut {} defer {}", setting.text(), cut, defer));
        EXPECT_EQ(
            difference(run_parts(setting, {{part(0, cut)}, {part(cut, layers)}}, defer), whole),
            "");
      }
    }
    SCOPED_TRACE(setting.text() + " in two stores of two parts");
    EXPECT_EQ(difference(run_parts(setting,
                                   {{part(0, 1), part(layers - 1, layers)},
                                    {part(1, 2), part(2, layers - 1)}},
                                   true),
                         whole),
              "");
  }
}

/// The shares of head and embedding are summed in another order than in one store.
TEST(Part, TiedEmbeddingsSumToTheWhole) {
  const Setting setting{.tied = true};
  const Result whole = run_whole(setting);
  const Result parts = run_parts(setting, {{part(0, 2)}, {part(2, 5)}}, false);
  EXPECT_EQ(parts.losses, whole.losses);
  ASSERT_EQ(parts.gradients.size(), whole.gradients.size());
  for (const auto& [name, gradient] : whole.gradients) {
    const std::vector<double>& sum = parts.gradients.at(name);
    ASSERT_EQ(sum.size(), gradient.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      if (name == "embedding.token") {
        EXPECT_NEAR(sum[i], gradient[i], 1e-6 * (1 + std::abs(gradient[i])));
      } else {
        EXPECT_EQ(sum[i], gradient[i]) << name;
      }
    }
  }
}

TEST(Part, MeasuredCostsOfPartsSumToTheWhole) {
  const Setting setting;
  const auto costs = measure_pass(config_of(setting), problem_of(setting),
                                  {.micro_batch = kSamples, .parts = {part(0, 2), part(2, 5)}});
  const auto whole =
      measure_pass(config_of(setting), problem_of(setting), {.micro_batch = kSamples});
  ASSERT_EQ(costs.size(), 2U);
  EXPECT_NEAR(costs[0].flops + costs[1].flops, whole[0].flops, 0.01 * whole[0].flops);
  EXPECT_GT(costs[0].deferred_bytes, 0U);
  EXPECT_EQ(whole[0].deferred_bytes, 0U);
}

}  // namespace
}  // namespace espalier::train::part_test
