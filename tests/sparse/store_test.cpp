// The parameter store: layout, sharing of the dense copy, survivors of a mask change, bytes.
#include <cmath>
#include <numeric>

#include "sparse/store/store.h"
#include "sparse/weight/weight.h"
#include "tests/support/failure.h"

namespace espalier::sparse::store_test {
namespace {

constexpr int64_t kRows = 24;
constexpr int64_t kCols = 40;

std::vector<ParameterSpec> specs() {
  return {{.name = "a.weight", .shape = Shape{kRows, kCols}, .prunable = true, .decay = true},
          {.name = "a.bias", .shape = Shape{kRows}},
          {.name = "b.weight", .shape = Shape{7, 3}, .prunable = true, .decay = true}};
}

class StoreTest : public ::testing::TestWithParam<std::tuple<DType, Encoding>> {
 protected:
  StoreTest()
      : store_(stream_, kernels_, specs(),
               {.dtype = std::get<0>(GetParam()),
                .encoding = [](const std::string&) { return std::get<1>(GetParam()); }}) {}

  /// Values that 16-bit types represent exactly, so that the dense copy can be compared.
  static std::vector<float> ramp(int64_t count, float start) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = start + static_cast<float>(i % 128);
    }
    return values;
  }

  std::vector<float> dense_of(const Parameter& parameter) const {
    std::vector<float> values;
    for (int64_t i = 0; i < parameter.size(); ++i) {
      with_number(parameter.dense.dtype, [&]<class Number>(Number) {
        values.push_back(to_float(parameter.dense.get<Number>()[i]));
      });
    }
    return values;
  }

  std::vector<Mask> every_third(int64_t phase) {
    std::vector<Mask> masks = store_.masks();
    for (int64_t i = 0; i < masks[0].size(); ++i) {
      masks[0].set(i, i % 3 == phase);
    }
    return masks;
  }

  Arena arena_;
  Stream stream_{arena_, 1};
  const kernels::Kernels& kernels_ = kernels::by_name("cpu");
  Store store_;
};

TEST_P(StoreTest, FlatArraysAreInBackwardOrder) {
  EXPECT_EQ(store_.find("b.weight").offset, 0);
  EXPECT_LT(store_.find("b.weight").offset, store_.find("a.bias").offset);
  EXPECT_LT(store_.find("a.bias").offset, store_.find("a.weight").offset);
  EXPECT_EQ(store_.flat_size() % Store::kAlign, 0);
  EXPECT_EQ(store_.total_size(), kRows * kCols + kRows + 21);
}

TEST_P(StoreTest, SurvivorsKeepValueAndMomentsAndTheRestStartsAtZeroButForItsSecondMoment) {
  Parameter& weight = store_.find("a.weight");
  Parameter& bias = store_.find("a.bias");
  store_.set_values(weight, ramp(weight.size(), 1));
  store_.set_values(bias, ramp(bias.size(), 5));
  std::vector<float> moment(static_cast<size_t>(weight.size()));
  std::iota(moment.begin(), moment.end(), 0.0F);
  store_.set_moment(weight, 1, moment);

  store_.set_masks(every_third(1));
  EXPECT_EQ(weight.kept(), kRows * kCols / 3);
  const auto positions = weight.index.positions();
  const auto values = store_.values(weight);
  const auto moments = store_.moment(weight, 1);
  for (size_t k = 0; k < positions.size(); ++k) {
    EXPECT_EQ(positions[k], 3 * static_cast<int32_t>(k) + 1);
    EXPECT_EQ(values[k], 1.0F + static_cast<float>(positions[k] % 128));
    EXPECT_EQ(moments[k], static_cast<float>(positions[k]));
  }
  EXPECT_EQ(store_.values(bias), ramp(bias.size(), 5));
  const auto dense = dense_of(weight);
  for (size_t i = 0; i < dense.size(); ++i) {
    EXPECT_EQ(dense[i], i % 3 == 1 ? 1.0F + static_cast<float>(i % 128) : 0.0F) << i;
  }

  store_.set_moment(weight, 0, moments);
  store_.set_masks(every_third(2));  // no survivor at all: drop and grow
  for (const float value : store_.values(weight)) {
    EXPECT_EQ(value, 0.0F);
  }
  for (const float value : store_.moment(weight, 0)) {
    EXPECT_EQ(value, 0.0F);
  }
  const double sum = std::accumulate(moments.begin(), moments.end(), 0.0);
  const auto mean = static_cast<float>(sum / static_cast<double>(moments.size()));
  for (const float value : store_.moment(weight, 1)) {
    EXPECT_EQ(value, mean);
  }
}

TEST_P(StoreTest, GradientLandsInKeptPositions) {
  store_.set_masks(every_third(0));
  Parameter& weight = store_.find("a.weight");
  Weight products(store_, kernels_, weight);
  const DType dtype = weight.dense.dtype;
  constexpr int64_t kBatch = 5;
  const Buffer dy = arena_.allocate(Memory::scratch, "dy", dtype, Shape{kBatch, kRows});
  const Buffer x = arena_.allocate(Memory::scratch, "x", dtype, Shape{kBatch, kCols});
  auto put = [&](const Tensor& tensor, int64_t i, float value) {
    with_number(dtype,
                [&]<class Number>(Number) { tensor.get<Number>()[i] = from_float<Number>(value); });
  };
  for (int64_t i = 0; i < kBatch * kRows; ++i) {
    put(dy.tensor(), i, static_cast<float>(i % 7 - 3));
  }
  for (int64_t i = 0; i < kBatch * kCols; ++i) {
    put(x.tensor(), i, static_cast<float>(i % 5 - 2));
  }
  for (const bool accumulate : {false, true}) {
    products.accumulate_gradient(stream_,
                                 {.dy = dy.tensor(), .x = x.tensor(), .accumulate = accumulate});
  }
  const auto positions = weight.index.positions();
  const auto gradient = store_.part(store_.gradient(), weight).span<float>();
  for (size_t k = 0; k < positions.size(); ++k) {
    const int64_t row = positions[k] / kCols;
    const int64_t col = positions[k] % kCols;
    float sum = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      sum += static_cast<float>((b * kRows + row) % 7 - 3) *
             static_cast<float>((b * kCols + col) % 5 - 2);
    }
    EXPECT_EQ(gradient[k], 2 * sum) << "kept element " << k;
  }
}

TEST_P(StoreTest, BytesAreThoseOfTheLedger) {
  const bool fp32 = std::get<0>(GetParam()) == DType::fp32;
  const size_t width = fp32 ? 4 : 2;
  const auto flat = [&] { return static_cast<size_t>(store_.flat_size()); };
  constexpr size_t kBiasCopy = kRows * 4;  // vectors are read in fp32
  EXPECT_EQ(arena_.use(Memory::gradient).now, flat() * 4);
  EXPECT_EQ(arena_.use(Memory::weight).now, flat() * width + (fp32 ? 0 : kBiasCopy));
  EXPECT_GE(arena_.use(Memory::master).now, fp32 ? 0 : flat() * 2);
  EXPECT_GE(arena_.use(Memory::moment).now, 2 * flat() * 4);
  store_.set_masks(every_third(0));
  EXPECT_EQ(arena_.use(Memory::gradient).now, flat() * 4);
  EXPECT_EQ(arena_.use(Memory::weight).now,
            flat() * width + (fp32 ? 0 : kBiasCopy) + width * kRows * kCols);
  EXPECT_EQ(arena_.use(Memory::index).now, store_.find("a.weight").index.bytes());
  store_.set_storage(store_.find("a.weight"), Storage::tiles);
  EXPECT_EQ(arena_.use(Memory::weight).now, flat() * width + (fp32 ? 0 : kBiasCopy));
  EXPECT_NE(store_.find("a.weight").tiles, nullptr);
  store_.set_storage(store_.find("a.weight"), Storage::sparse);
  EXPECT_EQ(arena_.use(Memory::weight).now, flat() * width + (fp32 ? 0 : kBiasCopy));
  EXPECT_EQ(store_.find("a.weight").tiles, nullptr);
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreTest,
    ::testing::Combine(::testing::Values(DType::fp32, DType::bf16, DType::fp16),
                       ::testing::Values(Encoding::int32, Encoding::golomb, Encoding::bitmap)));

TEST(StorageRegistry, NamesFindTheirStorage) {
  EXPECT_THAT(names(storages()),
              ::testing::ElementsAre("dense", "expanded", "sparse", "tiles", "block"));
  for (const Storage* storage : storages()) {
    EXPECT_EQ(storage_by_name(storage->name), *storage);
    EXPECT_NE(storage->products, nullptr) << storage->name;
    EXPECT_TRUE(storage->dense_products || !storage->dense_copy) << storage->name;
  }
  EXPECT_THAT(failure_of([] { storage_by_name("auto"); }), ::testing::HasSubstr("expanded"));
}

TEST(Store, PlansOfGrowthHoldCopiesOfTheLargerMask) {
  Arena arena(true);
  Stream stream(arena, 1);
  Store store(stream, kernels::by_name("cpu"),
              {{.name = "w", .shape = Shape{64, 64}, .prunable = true}}, {.planned = {64}});
  store.plan(std::vector<int64_t>{64 * 64});
  EXPECT_GE(arena.peak_with_heap(), arena.total().now + 4 * sizeof(float) * 64 * 64);
}

TEST(Store, InitialValuesDependOnSeedAndNameOnly) {
  Arena arena;
  Stream stream(arena, 1);
  const auto& kernels = kernels::by_name("cpu");
  auto draw = [&](std::string name, uint64_t seed) {
    Store store(
        stream, kernels,
        {{.name = name, .shape = Shape{64, 64}, .initial = Initial::normal, .deviation = 2}},
        {.encoding = {}});
    store.initialise(seed);
    return store.values(store.find(name));
  };
  const auto values = draw("w", 1);
  EXPECT_EQ(values, draw("w", 1));
  EXPECT_NE(values, draw("w", 2));
  EXPECT_NE(values, draw("v", 1));
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 4 * 2 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 4, 4 * 4 * std::sqrt(2 / n));
}

}  // namespace
}  // namespace espalier::sparse::store_test
