// Names of torchvision's networks: which array is which parameter's.
#include <optional>

#include "src/hub/array_match.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::hub::torchvision_test {
namespace {

using namespace testing;

/// An array of ones but for the first element.
struct Array {
  std::string name;
  Shape shape;
  float first = 1;
};

class Torchvision : public RunTest {
 protected:
  ArrayMatch match(const std::string& prefix, const std::vector<Array>& arrays,
                   const std::vector<std::string>& network) {
    const auto path = dir / "theirs.h5";
    io::PlainWriter writer(path);
    for (const Array& array : arrays) {
      std::vector<float> values(static_cast<size_t>(array.shape.count()), 1);
      values[0] = array.first;
      writer.write(prefix + array.name, array.shape, values);
    }
    writer.commit();
    reader_.emplace(path);
    config.model.kind = "vision";
    config.model.image = {8, 8, 3};
    config.model.network = network;
    config.data.kind = "images";
    return match_arrays(*reader_, config, {});
  }
  /// Of a batch norm.
  static void add_norm(std::vector<Array>& arrays, const std::string& name, int64_t channels) {
    for (const std::string part : {"weight", "bias", "running_mean", "running_var"}) {
      arrays.push_back({.name = name + "." + part, .shape = {channels}});
    }
  }
  std::optional<io::PlainReader> reader_;
};

TEST_F(Torchvision, ResNetsHaveTheirNamesBelowAnyPrefix) {
  std::vector<Array> arrays{{"conv1.weight", {4, 3, 3, 3}, 2},
                            {"layer1.0.conv1.weight", {4, 4, 3, 3}, 3},
                            {"layer1.0.conv2.weight", {4, 4, 3, 3}, 4},
                            {"fc.weight", {10, 4}},
                            {"fc.bias", {10}}};
  for (const std::string norm : {"bn1", "layer1.0.bn1", "layer1.0.bn2"}) {
    add_norm(arrays, norm, 4);
  }
  for (const std::string prefix : {"", "module.", "net.model."}) {
    const ArrayMatch found = match(prefix, arrays, {"conv 4 3 norm", "basic 4", "mean"});
    EXPECT_EQ(found.names, "torchvision");
    EXPECT_EQ(found.views.at("0.conv.weight").parts.front().array, prefix + "conv1.weight");
    EXPECT_EQ(found.views.at("1.basic.1.weight").parts.front().array,
              prefix + "layer1.0.conv1.weight");
  }
}

/// As many elements are not enough: [out, height, width, channels], another window.
TEST_F(Torchvision, KernelsHaveTheLayoutAndTheWindowOfTheNetwork) {
  const auto refusal = [&](const std::string& name, const Shape& kernel) {
    const bool own = name.starts_with("0.");
    const std::vector<Array> arrays{{name, kernel},
                                    {own ? "0.conv.bias" : "features.0.bias", {4}},
                                    {own ? "classifier.weight" : "classifier.0.weight", {10, 4}},
                                    {own ? "classifier.bias" : "classifier.0.bias", {10}}};
    return failure_of([&] { match("", arrays, {"conv 4 3", "mean"}); });
  };
  for (const std::string name : {"features.0.weight", "0.conv.weight"}) {
    EXPECT_EQ(refusal(name, {4, 3, 3, 3}), "");
    for (const Shape& kernel : {Shape{4, 27, 1, 1}, Shape{4, 1, 3, 9}, Shape{4, 3, 9, 1}}) {
      EXPECT_THAT(refusal(name, kernel), AllOf(HasSubstr(kernel.text()), HasSubstr("[4, 3, 3, 3]")))
          << name;
    }
  }
}

/// Ours have no bias there: (x + b - mean) = x - (mean - b).
TEST_F(Torchvision, ABiasBeforeABatchNormIsPartOfTheMean) {
  std::vector<Array> arrays{{"features.0.weight", {4, 3, 3, 3}},
                            {"features.0.bias", {4}, 0.25F},
                            {"classifier.0.weight", {10, 4}},
                            {"classifier.0.bias", {10}}};
  add_norm(arrays, "features.1", 4);
  const ArrayMatch found = match("", arrays, {"conv 4 3 norm", "mean"});
  const io::ArrayView& mean = found.views.at("0.conv.norm.mean");
  EXPECT_EQ(mean.subtracted, "features.0.bias");
  reader_->set_views(found.views);
  EXPECT_EQ(reader_->read("0.conv.norm.mean"), (std::vector<float>{0.75F, 0, 0, 0}));
}

}  // namespace
}  // namespace espalier::hub::torchvision_test
