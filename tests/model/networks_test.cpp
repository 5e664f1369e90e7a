// Every registered network: layers of ranges are those of the whole, and shared parameters exist.
#include "src/model/networks/registry.h"

#include <gtest/gtest.h>

#include "src/model/network.h"

namespace espalier::model {
namespace {

class Networks : public ::testing::TestWithParam<const NetworkKind*> {
 protected:
  io::ModelConfig config() const {
    return {.kind = std::string(GetParam()->name), .layers = 3, .tie_embeddings = true};
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

TEST_P(Networks, RangesAreThoseOfTheWhole) {
  EXPECT_NO_THROW(GetParam()->check(config()));
  const size_t count = layer_count(config());
  const auto whole = make_layers(config(), problem());
  ASSERT_EQ(whole.size(), count);
  for (size_t first = 0; first < count; ++first) {
    const auto range = make_layers(config(), problem(), first, count);
    ASSERT_EQ(range.size(), count - first);
    EXPECT_EQ(range[0]->name(), whole[first]->name());
    EXPECT_EQ(names_of(range[0]->parameters()), names_of(whole[first]->parameters()));
  }
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
  const auto specs = Network(make_layers(config(), data)).parameters();
  const ProblemShape found = GetParam()->problem_of(config(), [&](const std::string& name) {
    return std::ranges::find(specs, name, &sparse::ParameterSpec::name)->shape;
  });
  EXPECT_EQ(found.classes, data.classes);
  EXPECT_EQ(found.features, data.features);
  EXPECT_EQ(found.input_dtype, data.input_dtype);
}

INSTANTIATE_TEST_SUITE_P(All, Networks, ::testing::ValuesIn(networks().begin(), networks().end()),
                         [](const auto& network) { return std::string(network.param->name); });

}  // namespace
}  // namespace espalier::model
