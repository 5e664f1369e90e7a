// Every registered network: shared parameters exist, and weights determine the problem.
#include "src/model/networks/registry.h"

#include <gtest/gtest.h>

namespace espalier::model::networks_test {
namespace {

class Networks : public ::testing::TestWithParam<const NetworkKind*> {
 protected:
  io::ModelConfig config() const {
    return {.kind = std::string(GetParam()->name),
            .layers = 3,
            .tie_embeddings = true,
            .image = {8, 8, 1}};
  }
  ProblemShape problem() const { return {.input_dtype = GetParam()->input_dtype}; }
};

std::vector<std::string> names_of(std::span<const sparse::ParameterSpec> specs) {
  std::vector<std::string> names;
  for (const sparse::ParameterSpec& spec : specs) {
    names.push_back(spec.name);
  }
  return names;
}

TEST_P(Networks, TheLastLayerBorrowsTheTiedParameterOfTheFirst) {
  const auto layers = make_layers(config(), problem());
  const std::string_view tied = GetParam()->tied_parameter(config());
  const std::vector<std::string> borrowed = names_of(layers.back()->borrowed());
  EXPECT_EQ(borrowed, tied.empty() ? std::vector<std::string>()
                                   : std::vector<std::string>{std::string(tied)});
  const std::vector<std::string> first = names_of(layers.front()->parameters());
  EXPECT_TRUE(tied.empty() || std::ranges::find(first, tied) != first.end());
}

TEST_P(Networks, TheProblemIsThatOfTheWeights) {
  const ProblemShape data{.classes = 11, .input_dtype = GetParam()->input_dtype};
  const auto specs = parameters_of(make_layers(config(), data));
  const ProblemShape found = GetParam()->problem_of(config(), [&](const std::string& name) {
    return std::ranges::find(specs, name, &sparse::ParameterSpec::name)->shape;
  });
  EXPECT_EQ(found.classes, data.classes);
  EXPECT_EQ(found.features, data.features);
  EXPECT_EQ(found.input_dtype, data.input_dtype);
}

/// Weight decay: of matrices, not of norms and biases.
TEST_P(Networks, OnlyMatricesDecay) {
  for (const sparse::ParameterSpec& spec : parameters_of(make_layers(config(), problem()))) {
    EXPECT_EQ(spec.decay, spec.shape.rank() == 2) << spec.name;
  }
}

TEST_P(Networks, OtherWidthsAreNetworks) {
  const auto size = [&](const io::ModelConfig& model) {
    int64_t count = 0;
    for (const sparse::ParameterSpec& spec : parameters_of(make_layers(model, problem()))) {
      count += spec.shape.count();
    }
    return count;
  };
  for (const double share : {0.5, 0.625, 0.75, 1.5, 2.0}) {
    const auto scaled = GetParam()->scaled != nullptr ? GetParam()->scaled(config(), share)
                                                      : std::optional<io::ModelConfig>();
    ASSERT_EQ(scaled.has_value(), GetParam()->name != "vision");
    if (scaled) {
      GetParam()->check(*scaled);
      EXPECT_EQ(size(*scaled) > size(config()), share > 1) << share;
    }
  }
}

TEST(Decoders, OtherWidthsKeepGroupsOfHeads) {
  const auto scaled = [](io::ModelConfig config, double share) {
    config.kind = "decoder";
    const io::ModelConfig found = network_of(config).scaled(config, share).value();
    network_of(config).check(found);
    return std::tuple(found.width, found.heads, found.kv_heads, found.head_width, found.mlp_width);
  };
  const io::ModelConfig grouped{.heads = 12, .width = 768, .kv_heads = 4, .mlp_width = 2048};
  EXPECT_EQ(scaled(grouped, 0.75), std::tuple(576, 9, 3, 0, 1536));
  EXPECT_EQ(scaled(grouped, 0.625), std::tuple(480, 12, 4, 0, 1280)) << "heads of 40";
  EXPECT_EQ(scaled(grouped, 1.5), std::tuple(1152, 18, 6, 0, 3072));
  const io::ModelConfig one{.heads = 4, .width = 640, .kv_heads = 1, .head_width = 256};
  EXPECT_EQ(scaled(one, 0.75), std::tuple(480, 3, 1, 256, 0));
  EXPECT_EQ(scaled(one, 0.625), std::tuple(400, 4, 1, 160, 0));
  const io::ModelConfig odd{.heads = 14, .width = 896, .kv_heads = 2};
  EXPECT_EQ(scaled(odd, 0.625), std::tuple(560, 14, 2, 0, 0));
}

/// A checkpoint fits a config that states the family's numbers, and no other ones. Any context
/// reads the weights of rotary positions.
TEST(Decoders, IdentityHoldsTheNumbersThatZerosStandFor) {
  const auto identity = [](const io::ModelConfig& config) {
    return network_of(config).identity(config);
  };
  const io::ModelConfig config{.kind = "decoder", .family = "llama"};
  io::ModelConfig stated = config;
  stated.kv_heads = config.heads;
  stated.head_width = config.width / config.heads;
  stated.activation = "silu";
  stated.norm_epsilon = 1e-5;
  stated.rotary_base = 10'000;
  stated.rotary_share = 1;
  stated.context = 2 * config.context;
  EXPECT_EQ(identity(stated), identity(config));
  for (const auto& change : std::vector<void (*)(io::ModelConfig&)>{
           [](auto& model) { model.family = "mistral"; }, [](auto& model) { model.kv_heads = 2; },
           [](auto& model) { model.activation = "relu"; },
           [](auto& model) { model.norm_epsilon = 1e-6; }, [](auto& model) { model.window = 7; },
           [](auto& model) { model.rotary_base = 500'000; },
           [](auto& model) { model.rotary_share = 0.5; },
           [](auto& model) {
             model.rotary_scaling = "linear";
             model.rotary_factor = 2;
           }}) {
    io::ModelConfig changed = config;
    change(changed);
    EXPECT_NE(identity(changed), identity(config));
  }
  // Scalings other than "linear" are of the context before, which may be the context itself.
  const auto scaled = [&](const char* scaling, int64_t context, int64_t before) {
    io::ModelConfig model = config;
    model.rotary_scaling = scaling;
    model.rotary_factor = 2;
    model.context = context;
    model.rotary_context = before;
    return identity(model);
  };
  EXPECT_EQ(scaled("linear", 64, 0), scaled("linear", 128, 0));
  EXPECT_EQ(scaled("yarn", 64, 64), scaled("yarn", 128, 64));
  EXPECT_EQ(scaled("yarn", 64, 0), scaled("yarn", 128, 64));
  EXPECT_NE(scaled("yarn", 64, 0), scaled("yarn", 128, 0));
  EXPECT_NE(scaled("dynamic", 64, 64), scaled("dynamic", 128, 64));
}

INSTANTIATE_TEST_SUITE_P(All, Networks, ::testing::ValuesIn(networks().begin(), networks().end()),
                         [](const auto& network) { return std::string(network.param->name); });

}  // namespace
}  // namespace espalier::model::networks_test
