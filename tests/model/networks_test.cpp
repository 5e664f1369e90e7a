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

INSTANTIATE_TEST_SUITE_P(All, Networks, ::testing::ValuesIn(networks().begin(), networks().end()),
                         [](const auto& network) { return std::string(network.param->name); });

}  // namespace
}  // namespace espalier::model::networks_test
