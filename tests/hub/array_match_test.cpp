// Names and shapes of arrays in plain HDF5 files: what becomes which parameter, or is refused.
#include "src/hub/array_match.h"

#include "io/files/raw_file.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace espalier::hub::array_match_test {
namespace {

using namespace testing;

struct Array {
  std::string name;
  Shape shape;
  io::hdf5::Type type = io::hdf5::Type::fp32;
};

class ArrayMatching : public RunTest {
 protected:
  ArrayMatching() {
    config.model = {.kind = "mlp"};
    config.model.hidden = {8};
    config.model.classes = 3;
    config.data.kind = "images";
  }
  static std::vector<Array> network() {
    return {{"hidden.0.weight", {8, 16}},
            {"hidden.0.bias", {8}},
            {"classifier.weight", {3, 8}},
            {"classifier.bias", {3}}};
  }
  ArrayMatch match(const std::vector<Array>& arrays, const std::string& map = "") {
    auto file = io::hdf5::File::create(dir / "theirs.h5", "theirs");
    for (const Array& array : arrays) {
      const std::vector<double> zeros(static_cast<size_t>(array.shape.count()));
      file.write("/" + array.name, array.type, array.shape.extents(), zeros.data());
    }
    file.finish();
    std::ofstream(dir / "names.map") << map;
    const std::vector<MapLine> lines = read_array_map(dir / "names.map");
    const io::PlainReader reader(dir / "theirs.h5",
                                 [&](const std::string& name) { return leaves_out(lines, name); });
    return match_arrays(reader, config, lines);
  }
  std::string refusal(const std::vector<Array>& arrays, const std::string& map = "") {
    return failure_of([&] { match(arrays, map); });
  }
  static std::string of(const ArrayMatch& found, const std::string& parameter) {
    return found.views.at(parameter).parts.front().array;
  }
};

TEST_F(ArrayMatching, WhatHasAParametersNameIsUsedOrNamed) {
  for (const std::string prefix : {"", "module."}) {
    for (const size_t bad : {0U, 2U}) {
      for (const std::string other : {"_mask", "_keep", ".exp_avg"}) {
        std::vector<Array> arrays = network();
        std::ranges::for_each(arrays, [&](Array& array) { array.name = prefix + array.name; });
        const std::string name = arrays[bad].name;
        arrays[bad].type = io::hdf5::Type::uint8;
        arrays.push_back({name + other, arrays[bad].shape});
        EXPECT_THAT(refusal(arrays), HasSubstr(name + " cannot be used: it holds integers"));
      }
    }
  }
}

TEST_F(ArrayMatching, ShapesNeverChooseMasksOrStatesOfOptimizers) {
  for (const std::string name :
       {"kept.mask.0", "Weight_Mask", "fc.exp_avg", "fc.exp_avg_sq", "optimizer.fc.v",
        "fc.momentum_buffer", "fc.moment1", "fc.max_exp_avg_sq"}) {
    std::vector<Array> arrays = network();
    arrays[0].name = name;
    EXPECT_THAT(refusal(arrays), HasSubstr("expected hidden.0.weight")) << name;
    EXPECT_EQ(of(match(arrays, name + " -> hidden.0.weight"), "hidden.0.weight"), name);
    arrays.push_back({"first", {8, 16}});
    EXPECT_EQ(of(match(arrays, name + " -> -"), "hidden.0.weight"), "first");
  }
  std::vector<Array> masked = network();
  masked[0].name = "fc.weight.original";
  masked.push_back({"fc.weight.0.mask", {8, 16}, io::hdf5::Type::uint8});
  EXPECT_THAT(refusal(masked), HasSubstr("fc.weight.0.mask is named like a mask, and no array"));
  // Something else of this shape that cannot be used.
  std::vector<Array> arrays = network();
  arrays[0].name = "first.keep";
  arrays.push_back({"first.codes", {8, 16}, io::hdf5::Type::uint8});
  EXPECT_THAT(refusal(arrays), AllOf(HasSubstr("first.keep may be hidden.0.weight"),
                                     HasSubstr("first.codes has this shape, too")));
  EXPECT_EQ(of(match(arrays, "first.codes -> -"), "hidden.0.weight"), "first.keep");
}

TEST_F(ArrayMatching, WhatIsLeftOverIsNamed) {
  std::vector<Array> arrays = network();
  for (int i = 0; i < 12; ++i) {
    arrays.push_back({fmt::format("step{:02}", i), {1}, io::hdf5::Type::int64});
  }
  EXPECT_THAT(match(arrays).notes,
              Contains(AllOf(HasSubstr("skipped: step00, step01"), HasSubstr(" and 2 more"))));
  arrays = network();
  arrays.push_back({"my fc_mask", {8, 17}, io::hdf5::Type::uint8});
  EXPECT_THAT(refusal(arrays), HasSubstr("leave it out by a line \"my fc_mask -> -\""));
  EXPECT_TRUE(match(arrays, "my fc_mask -> -").notes.empty());
  arrays = network();
  arrays.push_back({"masks.0.hidden.0.weight", {8, 16}, io::hdf5::Type::uint8});
  arrays.push_back({"masks.0.hidden.0.kernel", {8, 16}, io::hdf5::Type::uint8});
  for (const std::string line : {"masks -> -", "/masks/{} -> -", "masks.{*} -> -"}) {
    EXPECT_TRUE(match(arrays, line).notes.empty()) << line;
  }
  EXPECT_THAT(refusal(arrays, "mask -> -"), HasSubstr("masks.0.hidden.0.kernel is named like"));
  arrays = network();
  arrays.push_back({"hidden.1.weight", {8, 8}, io::hdf5::Type::uint8});
  EXPECT_THAT(refusal(arrays), HasSubstr("hidden.1.weight is named like arrays of the network"));
}

TEST_F(ArrayMatching, LinesNameWhatTheFileHas) {
  for (const auto& [name, line] : std::vector<std::pair<std::string, std::string>>{
           {"dense layer.w", "dense layer/w -> hidden.0.weight"},
           {"a+b", "a+b -> hidden/0/weight"},
           {"dense#0", "dense#0 -> hidden.0.weight # the first"},
           {"enc.w", "/enc/w -> hidden.0.weight"},
           {"enc.7.w", "\n# all\nenc.7.w   ->   hidden.0.weight\t#"}}) {
    std::vector<Array> arrays = network();
    arrays[0].name = name;
    arrays.push_back({"other", {8, 16}});
    EXPECT_EQ(of(match(arrays, line), "hidden.0.weight"), name);
  }
  EXPECT_THAT(refusal(network(), "x -> hidden.0.weigth"),
              HasSubstr("line 1: the network has no parameter hidden.0.weigth (did you mean "
                        "\"hidden.0.weight\"?)"));
  EXPECT_THAT(refusal(network(), "x.{} -> hiden.{}.bias"),
              HasSubstr("did you mean \"hidden.{}.bias\"?"));
}

}  // namespace
}  // namespace espalier::hub::array_match_test
