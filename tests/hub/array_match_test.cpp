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

/// Names that lines of a map need quotes for: the line that a message shows works.
TEST_F(ArrayMatching, MessagesShowLinesThatWork) {
  for (const std::string name : {"my mask", "my # mask", "a + mask", "a -> mask", "\"mask"}) {
    std::vector<Array> arrays = network();
    arrays.push_back({name, {8, 17}, io::hdf5::Type::uint8});
    const std::string text = refusal(arrays);
    const size_t begin = text.find("by a line \"") + 11;
    const std::string line = text.substr(begin, text.find("\" in a --map") - begin);
    EXPECT_TRUE(match(arrays, line).notes.empty()) << line;
  }
}

TEST_F(ArrayMatching, FailuresThatAMapMendsHaveATypeOfTheirOwn) {
  const auto mends = [&](const std::vector<Array>& arrays) {
    try {
      match(arrays);
    } catch (const MapFailure&) {
      return true;
    } catch (const Failure&) {
    }
    return false;
  };
  std::vector<Array> arrays = network();
  arrays[0].name = "--map";
  arrays.push_back({"other", {8, 16}});
  EXPECT_TRUE(mends(arrays)) << "a missing parameter";
  arrays = network();
  arrays[0].shape = {16, 8};
  EXPECT_TRUE(mends(arrays)) << "transposed";
  std::ranges::for_each(arrays, [](Array& array) { array.name = "model." + array.name; });
  EXPECT_TRUE(mends(arrays)) << "transposed below a prefix";
  arrays = network();
  arrays.push_back({"some_mask", {8, 17}});
  EXPECT_TRUE(mends(arrays)) << "a mask of no array";
  arrays = network();
  arrays.push_back({"hidden.1.weight --map", {8, 8}});
  arrays.push_back({"hidden.0.weight --map", {8, 8}});
  EXPECT_FALSE(failure_of([&] { match(arrays); }).empty() && mends(arrays));
  arrays = network();
  arrays[0].name = "first.keep";
  arrays.push_back({"--map", {8, 16}, io::hdf5::Type::uint8});
  EXPECT_TRUE(mends(arrays)) << "another array of the shape";
  arrays = network();
  arrays.push_back({"hidden.7.weight", {8, 8}});
  EXPECT_FALSE(mends(arrays)) << "a further layer";
}

TEST_F(ArrayMatching, MasksOfPositionsAndTokensAreNoMasksOfWeights) {
  std::vector<Array> arrays = network();
  arrays.push_back({"mask_token", {1, 1, 16}});
  arrays.push_back({"attn.mask", {1, 1, 5, 5}});
  arrays.push_back({"attn.masked_bias", {}});
  arrays.push_back({"causal_mask", {5, 5}, io::hdf5::Type::uint8});
  const ArrayMatch found = match(arrays);
  EXPECT_THAT(found.notes, ::testing::Contains("not used: attn.masked_bias, mask_token"));
  EXPECT_THAT(found.notes, Contains(HasSubstr("skipped: attn.mask (masks positions, not weights), "
                                              "causal_mask (masks positions")));
  arrays[0].name = "first.attn_mask";  // the weights that the network needs
  EXPECT_THAT(refusal(arrays), HasSubstr("expected hidden.0.weight"));
  EXPECT_THAT(
      refusal(arrays, "first.attn_mask -> hidden.0.weight"),
      HasSubstr("first.attn_mask cannot be used: it masks positions, as attention reads it; "
                "rename it if it holds weights"));
}

TEST_F(ArrayMatching, ASecondNetworkIsLeftOutByItsGroup) {
  std::vector<Array> arrays;
  for (const std::string group : {"best.", "last."}) {
    for (const Array& array : network()) {
      arrays.push_back({group + array.name, array.shape});
    }
  }
  EXPECT_THAT(refusal(arrays), HasSubstr("with the names of this program below best; of this "
                                         "program below last; leave out the others by lines"));
  EXPECT_EQ(of(match(arrays, "best -> -"), "hidden.0.weight"), "last.hidden.0.weight");
}

/// The first matrix has an extent that only the data determine.
TEST_F(ArrayMatching, LinesJoinAndSplitRowsOfTheFirstMatrix) {
  const auto parts = [&](const std::string& map, const std::vector<Array>& first) {
    std::vector<Array> arrays = network();
    arrays.erase(arrays.begin());
    arrays.insert(arrays.end(), first.begin(), first.end());
    return match(arrays, map).views.at("hidden.0.weight").parts.size();
  };
  EXPECT_EQ(parts("a + b -> hidden.0.weight", {{"a", {3, 16}}, {"b", {5, 16}}}), 2U);
  EXPECT_EQ(parts("a + b -> hidden.0.weight transpose", {{"a", {16, 3}}, {"b", {16, 5}}}), 2U);
  std::vector<Array> arrays = network();
  arrays.push_back({"biases", {24}});
  EXPECT_THAT(refusal(arrays, "biases -> hidden.0.bias, classifier.bias"),
              HasSubstr("biases has 24 rows, and the parameters of the line have "));
  arrays.pop_back();
  config.model.hidden = {8, 8};
  arrays[0] = {"both", {16, 8}};
  arrays.push_back({"hidden.1.bias", {8}});
  EXPECT_EQ(match(arrays, "both -> hidden.0.weight, hidden.1.weight").problem.features, 8);
  EXPECT_THAT(refusal(arrays, "both -> hidden.0.weight, hidden.0.weight, hidden.1.weight"),
              HasSubstr("both has shape [16, 8], which does not make"));
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
  for (const std::string name :
       {"a #1", "# a", "a + b", "a -> b", " a ", "\ta", "\"a\"", "a \"b", "a\\ \"b\"", "a, b + c",
        "a\nb -> c", "transpose", "-", "a -> -", "Ü #"}) {
    std::vector<Array> arrays = network();
    arrays[0].name = name;
    arrays.push_back({"other", {8, 16}});
    const std::string quoted = name_in_map(name);
    EXPECT_EQ(of(match(arrays, quoted + " -> hidden.0.weight # \""), "hidden.0.weight"), name);
    EXPECT_EQ(of(match(arrays, quoted + "->-"), "hidden.0.weight"), "other") << quoted;
  }
  std::vector<Array> rows = network();
  rows[0] = {"a #0", {3, 16}};
  rows.push_back({"a #1", {5, 16}});
  EXPECT_EQ(match(rows, "\"a #0\" + \"/a #1\" -> hidden.0.weight")
                .views.at("hidden.0.weight")
                .parts.size(),
            2U);
  std::vector<Array> layers = network();
  layers[0].name = "layer 0 # w";
  EXPECT_EQ(of(match(layers, "\"layer {} # w\" -> \"hidden.{}.weight\""), "hidden.0.weight"),
            "layer 0 # w");
  EXPECT_THAT(refusal(network(), "\"a -> b"), HasSubstr("has no \"->\" outside of quotes"));
  EXPECT_THAT(refusal(network(), "\"a\"b -> c"), HasSubstr("does not end with the second one"));
  EXPECT_THAT(refusal(network(), "x -> hidden.0.weigth"),
              HasSubstr("line 1: the network has no parameter hidden.0.weigth (did you mean "
                        "\"hidden.0.weight\"?)"));
  EXPECT_THAT(refusal(network(), "x.{} -> hiden.{}.bias"),
              HasSubstr("did you mean \"hidden.{}.bias\"?"));
}

/// A GPT whose head is, or is not, its embedding, and files of the other kind.
class TiedMatching : public ArrayMatching {
 protected:
  TiedMatching() {
    config.model = {.kind = "gpt", .layers = 1, .heads = 1, .width = 4, .context = 3};
    config.data.kind = "bytes";
  }
  /// The parameters of the network below `prefix`; the head, if it has a name, holds `value`.
  ArrayMatch read(bool tied, const std::string& head, float value, const std::string& map = "",
                  const std::string& prefix = "") {
    config.model.tie_embeddings = false;
    auto file = io::hdf5::File::create(dir / "theirs.h5", "theirs");
    for (const sparse::ParameterSpec& spec :
         specs_for(config.model, {.classes = 256, .features = 3})) {
      const auto& [name, shape] = std::tie(spec.name, spec.shape);
      const bool is_head = name == "head.weight";
      if (!is_head || !head.empty()) {
        const std::vector<float> values(static_cast<size_t>(shape.count()), is_head ? value : 1.0F);
        file.write("/" + prefix + (is_head ? head : name), io::hdf5::Type::fp32, shape.extents(),
                   values.data());
      }
    }
    file.finish();
    config.model.tie_embeddings = tied;
    std::ofstream(dir / "names.map") << map;
    const io::PlainReader reader(dir / "theirs.h5");
    return match_arrays(reader, config, read_array_map(dir / "names.map"));
  }
};

TEST_F(TiedMatching, AHeadOfATiedNetworkEqualsTheEmbedding) {
  const std::string map = "lm.{*} -> head.{*}";
  for (const auto& [head, lines] :
       std::vector<std::pair<std::string, std::string>>{{"head.weight", ""},
                                                        {"head.weight", "{*} -> {*}"},
                                                        {"lm_head", "lm_head -> head.weight"},
                                                        {"lm.weight", map}}) {
    EXPECT_FALSE(read(true, head, 1, lines).views.contains("head.weight")) << lines;
    EXPECT_THAT(failure_of([&, h = head, l = lines] { read(true, h, 2, l); }),
                HasSubstr(head + " differs from embedding.token, and the config ties them; set "
                                 "model.tie_embeddings = false"));
    EXPECT_EQ(of(read(false, head, 2, lines), "head.weight"), head);
  }
  EXPECT_THAT(failure_of([&] { read(true, "head.weight", 2, "", "model."); }),
              HasSubstr("model.head.weight differs from model.embedding.token"));
}

TEST_F(TiedMatching, WithoutAHeadItIsTheEmbedding) {
  for (const std::string map : {"", "{*} -> {*}", "lm_head -> head.weight"}) {
    const ArrayMatch found = read(false, "", 0, map);
    EXPECT_EQ(of(found, "head.weight"), "embedding.token") << map;
    EXPECT_THAT(found.notes, Contains(HasSubstr("head.weight is a copy of embedding.token")));
  }
  // Another array may be the head.
  EXPECT_EQ(of(read(false, "out.w", 2), "head.weight"), "out.w") << "by its shape";
  EXPECT_THAT(failure_of([&] { read(false, "out.w", 2, "lm_head -> head.weight"); }),
              HasSubstr("expected lm_head for head.weight [256, 4]"));
}

}  // namespace
}  // namespace espalier::hub::array_match_test
