// The list of layers of a network for images: what it means, and what is refused.
#include "src/model/networks/registry.h"
#include "tests/support/failure.h"

namespace espalier::vision_test {
namespace {

io::ModelConfig config_of(std::vector<std::string> network, std::vector<int64_t> image) {
  return {.kind = "vision", .network = std::move(network), .image = std::move(image)};
}

model::Layers layers_of(const io::ModelConfig& config) {
  const int64_t features = config.image[0] * config.image[1] * config.image[2];
  return model::make_layers(config,
                            {.classes = 10, .features = features, .input_dtype = DType::fp32});
}

TEST(Vision, LayersHaveTheShapesOfTheList) {
  const auto layers = layers_of(config_of({"conv 8 5 stride 2", "2 x conv 16 3 groups 4",
                                           "max 3 stride 2 padding 1", "mean", "linear 20"},
                                          {32, 32, 3}));
  std::vector<std::string> outputs;
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    outputs.push_back(std::string(layers[i]->name()) + " " +
                      layers[i]->output(5, DType::bf16).shape.text());
  }
  EXPECT_THAT(outputs,
              ElementsAre("0.conv [5, 256, 8]", "1.conv [5, 256, 16]", "2.conv [5, 256, 16]",
                          "3.max [5, 64, 16]", "4.mean [5, 16]", "5.linear [5, 20]"));
  const auto parameters = model::parameters_of(layers);
  EXPECT_EQ(parameters[0].name, "0.conv.weight");
  EXPECT_EQ(parameters[0].shape, (Shape{8, 5 * 5 * 3}));
  EXPECT_EQ(parameters[2].name, "1.conv.0.weight");
  EXPECT_EQ(parameters[2].shape, (Shape{4, 3 * 3 * 2}));
  EXPECT_EQ(layers.back()->name(), "classifier");
}

TEST(Vision, BlocksHaveTheShapesOfTheirPapers) {
  const auto layers = layers_of(config_of(
      {"conv 16 3 norm", "basic 16", "bottleneck 64 stride 2 groups 4", "wide 32", "norm"},
      {32, 32, 3}));
  std::vector<std::string> shapes;
  for (const sparse::ParameterSpec& spec : model::parameters_of(layers)) {
    if (spec.shape.rank() == 2) {
      shapes.push_back(spec.name + " " + spec.shape.text());
    }
  }
  EXPECT_THAT(shapes,
              ElementsAre("0.conv.weight [16, 27]", "1.basic.1.weight [16, 144]",
                          "1.basic.2.weight [16, 144]", "2.bottleneck.1.weight [16, 16]",
                          "2.bottleneck.2.0.weight [4, 36]", "2.bottleneck.2.1.weight [4, 36]",
                          "2.bottleneck.2.2.weight [4, 36]", "2.bottleneck.2.3.weight [4, 36]",
                          "2.bottleneck.3.weight [64, 16]", "2.bottleneck.shortcut.weight [64, 16]",
                          "3.wide.conv1.weight [32, 576]", "3.wide.conv2.weight [32, 288]",
                          "3.wide.shortcut.weight [32, 64]", "classifier.weight [10, 8192]"));
  EXPECT_EQ(layers[2]->output(5, DType::bf16).shape, (Shape{5, 256, 64}));
  EXPECT_EQ(layers[4]->output(5, DType::bf16).shape, (Shape{5, 8192}));
}

TEST(Vision, TransformersHaveTheShapesOfTheirPaper) {
  const auto layers = layers_of(config_of(
      {"patch 24 4", "2 x transformer 3", "transformer 2 ratio 2", "token-mean"}, {12, 12, 3}));
  std::vector<std::string> outputs;
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    const model::TensorSpec spec = layers[i]->output(5, DType::bf16);
    outputs.push_back(
        fmt::format("{} {} {}", layers[i]->name(), name_of(spec.dtype), spec.shape.text()));
  }
  EXPECT_THAT(outputs, ElementsAre("0.patch fp32 [5, 9, 24]", "1.transformer fp32 [5, 9, 24]",
                                   "2.transformer fp32 [5, 9, 24]", "3.transformer fp32 [5, 9, 24]",
                                   "4.token-mean bf16 [5, 24]"));
  std::vector<std::string> shapes;
  for (const sparse::ParameterSpec& spec : model::parameters_of(layers)) {
    if (!spec.name.starts_with("1.") && !spec.name.starts_with("2.")) {
      shapes.push_back(spec.name + " " + spec.shape.text());
    }
  }
  EXPECT_THAT(
      shapes,
      ElementsAre(
          "0.patch.weight [24, 48]", "0.patch.bias [24]", "0.patch.position [9, 24]",
          "3.transformer.norm1.weight [24]", "3.transformer.norm1.bias [24]",
          "3.transformer.attention.qkv.weight [72, 24]", "3.transformer.attention.qkv.bias [72]",
          "3.transformer.attention.projection.weight [24, 24]",
          "3.transformer.attention.projection.bias [24]", "3.transformer.norm2.weight [24]",
          "3.transformer.norm2.bias [24]", "3.transformer.mlp.expand.weight [48, 24]",
          "3.transformer.mlp.expand.bias [48]", "3.transformer.mlp.contract.weight [24, 48]",
          "3.transformer.mlp.contract.bias [24]", "4.token-mean.norm.weight [24]",
          "4.token-mean.norm.bias [24]", "classifier.weight [10, 24]", "classifier.bias [10]"));
}

std::string refusal(const std::vector<std::string>& network, const std::vector<int64_t>& image) {
  const io::ModelConfig config = config_of(network, image);
  return failure_of([&] { model::network_of(config).check(config); });
}

TEST(Vision, ImpossibleListsAreRefused) {
  const std::vector<int64_t> small{8, 8, 4};
  EXPECT_THAT(refusal({}, small), HasSubstr("model.network is empty"));
  EXPECT_THAT(refusal({"conv 8 3", "pool 2"}, small), HasSubstr("no layer 'pool'"));
  EXPECT_THAT(refusal({"conv 8"}, small), HasSubstr("'conv 8' needs the extent of its window"));
  EXPECT_THAT(refusal({"conv 8 3 strides 2"}, small), HasSubstr("unexpected 'strides'"));
  EXPECT_THAT(refusal({"conv 8 3 stride 2 stride 3"}, small), HasSubstr("unexpected 'stride'"));
  EXPECT_THAT(refusal({"conv 8 3 stride"}, small), HasSubstr("needs a number there"));
  EXPECT_THAT(refusal({"conv 8 3 stride 0"}, small), HasSubstr("a stride of at least 1"));
  EXPECT_THAT(refusal({"conv 8 3 padding 3"}, small), HasSubstr("less padding than its extent"));
  EXPECT_THAT(refusal({"conv 9 3 groups 2"}, small), HasSubstr("must divide its 4 input and 9"));
  EXPECT_THAT(refusal({"conv 0 3"}, small), HasSubstr("must divide its 4 input and 0"));
  EXPECT_THAT(refusal({"conv 8 3", "max 4", "max 3"}, small),
              HasSubstr("the window of 'max 3' does not fit into images of 2 x 2 x 8; it reads the "
                        "output of 'max 4'; its form is 'max EXTENT [stride S] [padding P]'"));
  EXPECT_THAT(refusal({"max 9"}, small), HasSubstr("images of 8 x 8 x 4; it reads the data"));
  EXPECT_THAT(refusal({"mean"}, {8, 6, 1}), HasSubstr("needs square images, and gets 8 x 6 x 1"));
  EXPECT_THAT(refusal({"linear 8", "conv 8 3"}, small), IsEmpty());
  EXPECT_THAT(refusal({"lrn 4"}, small), HasSubstr("must be 'lrn' or 'lrn EXTENT', with an odd"));
  EXPECT_THAT(refusal({"lrn 33"}, small), HasSubstr("number of channels up to 31"));
  EXPECT_THAT(refusal({"lrn 5 9"}, small), HasSubstr("its form is 'lrn [EXTENT]'"));
  EXPECT_THAT(refusal({"linear 8 9"}, small), HasSubstr("must be 'linear OUT'"));
  EXPECT_THAT(refusal({"conv 60000 65535 padding 65534"}, small), HasSubstr("would have a weight"));
  EXPECT_THAT(refusal({"linear 65536", "linear 65536"}, small),
              HasSubstr("'linear 65536' would have a weight of 65536 x 65536 elements"));
  EXPECT_THAT(refusal({"basic 8"}, small), HasSubstr("'basic 8' cannot be the first layer"));
  EXPECT_THAT(refusal({"conv 8 3", "bottleneck 3"}, small), HasSubstr("8 input and 0"));
  EXPECT_THAT(refusal({"conv 8 3 norm norm"}, small), HasSubstr("unexpected 'norm'"));
  EXPECT_THAT(refusal({"patch 8 3"}, small),
              HasSubstr("the extent of 'patch 8 3' must divide the height and width of images of "
                        "8 x 8 x 4; it reads the data; its form is 'patch WIDTH "
                        "EXTENT'"));
  EXPECT_THAT(refusal({"patch 8 0", "token-mean"}, small), HasSubstr("must divide the height"));
  EXPECT_THAT(refusal({"patch 8 2 norm"}, small), HasSubstr("must be 'patch WIDTH EXTENT'"));
  EXPECT_THAT(refusal({"patch 8 2", "transformer 3", "token-mean"}, small),
              HasSubstr("the heads of 'transformer 3' must divide the width of its tokens, 8; it "
                        "reads the output of 'patch 8 2'"));
  EXPECT_THAT(refusal({"patch 8 2", "transformer 0"}, small), HasSubstr("must divide the width"));
  EXPECT_THAT(refusal({"patch 8 2", "transformer 2 ratio 0"}, small),
              HasSubstr("the ratio of 'transformer 2 ratio 0' must be at least 1"));
  EXPECT_THAT(refusal({"patch 65536 8", "transformer 1"}, small),
              HasSubstr("'transformer 1' would have a weight of 262144 x 65536 elements"));
  EXPECT_THAT(refusal({"conv 8 3", "transformer 2"}, small),
              HasSubstr("'transformer 2' reads tokens, and gets images of 8 x 8 x 8; put a 'patch' "
                        "before it; it reads the output of 'conv 8 3'"));
  EXPECT_THAT(refusal({"transformer 2"}, small), HasSubstr("it reads the data"));
  EXPECT_THAT(refusal({"patch 8 2", "transformer 2", "conv 8 3"}, small),
              HasSubstr("'conv 8 3' reads images, and gets 4 x 4 tokens of 8; put 'token-mean' "
                        "before it; it reads the output of 'transformer 2'"));
  EXPECT_THAT(refusal({"patch 8 2", "patch 8 2"}, small), HasSubstr("'patch 8 2' reads images"));
  EXPECT_THAT(refusal({"patch 8 2", "3 x transformer 2"}, small),
              HasSubstr("'transformer 2' is the last layer and gives 4 x 4 tokens of 8; add "
                        "'token-mean'"));
  EXPECT_THAT(refusal({"patch 8 2", "token-mean"}, {8, 4, 1}),
              HasSubstr("as many rows of tokens as columns, and gets 4 x 2 tokens of 8"));
  EXPECT_THAT(refusal({"patch 8 2", "token-mean 2"}, small), HasSubstr("must be 'token-mean'"));
  EXPECT_THAT(refusal({"conv 8 3", "patch 8 2", "transformer 2", "token-mean", "linear 9"}, small),
              IsEmpty());
  EXPECT_THAT(refusal({"0 x conv 8 3"}, small), HasSubstr("repetitions"));
  EXPECT_THAT(refusal({"3 conv 8 3"}, small), HasSubstr("repetitions"));
  EXPECT_THAT(refusal({"conv 8 3"}, {8, 8}), HasSubstr("[height, width, channels]"));
}

/// Of another size, and of other extents with as many numbers.
TEST(Vision, OtherImagesThanTheDataAreRefused) {
  const auto refused = [](const std::vector<int64_t>& image, const model::ProblemShape& data) {
    return failure_of([&] { model::make_layers(config_of({"conv 8 3"}, image), data); });
  };
  EXPECT_THAT(refused({8, 8, 1}, {.classes = 10, .features = 63, .input_dtype = DType::fp32}),
              HasSubstr("model.image = 8 x 8 x 1 has 64 numbers, but the images of the data have "
                        "63"));
  EXPECT_THAT(
      refused(
          {8, 6, 2},
          {.classes = 10, .features = 96, .input_dtype = DType::fp32, .image = Shape{8, 12, 1}}),
      HasSubstr("model.image = [8, 6, 2], but the images of the data are [8, 12, 1] "
                "(height, width, channels)"));
}

}  // namespace
}  // namespace espalier::vision_test
