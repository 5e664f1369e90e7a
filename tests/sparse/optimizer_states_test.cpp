// The compact forms of optimizer state against the plain one, through the tables' own operations.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sparse/store/optimizer_arrays.h"
#include "src/core/rng.h"
#include "src/kernels/rules/master.h"
#include "tests/kernels/kernel_memory.h"

namespace espalier::kernels::optimizer_states_test {
namespace {

constexpr int64_t kCount = 10 * kQuantizeBlock + 77;

/// One parameter in one form; several steps of an optimizer.
struct State {
  explicit State(int64_t n, DType type = DType::fp32, bool coded_moments = false,
                 bool halves = true)
      : count(n), dtype(type), split(type != DType::fp32 && halves), coded(coded_moments) {
    const int64_t blocks = (n + kQuantizeBlock - 1) / kQuantizeBlock;
    gradient = make(DType::fp32, n);
    value = make(dtype, n);
    for (int i = 0; i < 2; ++i) {
      moment[i] = make(coded ? DType::uint8 : DType::fp32, n);
      scale[i] = make(DType::fp32, blocks);
    }
    low = make(DType::uint16, n);
    // Codes of zero; all other arrays are already zero.
    if (coded) {
      std::fill_n(moment[0].tensor().get<uint8_t>(), n, uint8_t{127});
    }
  }
  Buffer make(DType of, int64_t n) {
    return arena.allocate(Memory::scratch, "state", of, Shape{n});
  }
  float master(int64_t k) {
    const auto rest = low.tensor().get<uint16_t>()[k];
    return dtype == DType::bf16   ? kernels::join(value.tensor().get<bf16>()[k], rest)
           : dtype == DType::fp16 ? kernels::join(value.tensor().get<fp16>()[k], rest)
                                  : value.tensor().get<float>()[k];
  }
  void set_master(int64_t k, float w) {
    if (dtype == DType::bf16) {
      put(k, kernels::split<bf16>(w));
    } else if (dtype == DType::fp16) {
      put(k, kernels::split<fp16>(w));
    } else {
      value.tensor().get<float>()[k] = w;
    }
  }
  template <class High>
  void put(int64_t k, const kernels::SplitFloat<High>& parts) {
    value.tensor().get<High>()[k] = parts.high;
    low.tensor().get<uint16_t>()[k] = parts.low;
  }
  UpdateArgs adamw() {
    return {.gradient = gradient.tensor(),
            .value = value.tensor(),
            .low = split ? low.tensor() : Tensor{},
            .moment1 = moment[0].tensor(),
            .moment2 = moment[1].tensor(),
            .scale1 = coded ? scale[0].tensor() : Tensor{},
            .scale2 = coded ? scale[1].tensor() : Tensor{},
            .lr = 0.01F,
            .weight_decay = 0.1F};
  }
  UpdateArgs sgd() {
    UpdateArgs args = adamw();
    args.rule = UpdateRule::sgd;
    args.moment2 = args.scale2 = {};
    return args;
  }

  Arena arena;
  Stream stream{arena, 1};
  int64_t count;
  DType dtype;
  bool split, coded;
  Buffer gradient, value, low, moment[2], scale[2];
};

void draw_gradient(std::mt19937& random, const State& state) {
  std::normal_distribution<float> normal;
  for (float& g : state.gradient.tensor().span<float>()) {
    g = normal(random) * std::exp(3 * normal(random));
  }
}

void draw_values(State& state) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int64_t k = 0; k < state.count; ++k) {
    state.set_master(k, normal(random));
  }
}

/// fp16, except numbers below 2^-16, which are rounded to multiples of 2^-39.
void expect_same_steps(DType dtype) {
  constexpr int kSteps = 5;
  const float allowed = dtype == DType::fp16 ? kSteps * 0x1p-40F : 0.0F;
  for (const Kernels* table : computing_tables()) {
    for (const bool adamw : {true, false}) {
      State plain(kCount);
      State split(kCount, dtype);
      draw_values(plain);
      draw_values(split);
      std::mt19937 random(4);
      for (int step = 0; step < kSteps; ++step) {
        draw_gradient(random, plain);
        std::ranges::copy(plain.gradient.tensor().span<float>(),
                          split.gradient.tensor().get<float>());
        if (adamw) {
          table->update(plain.stream, plain.adamw());
          table->update(split.stream, split.adamw());
        } else {
          table->update(plain.stream, plain.sgd());
          table->update(split.stream, split.sgd());
        }
        for (int64_t k = 0; k < kCount; ++k) {
          ASSERT_NEAR(plain.master(k), split.master(k), allowed)
              << table->name << " " << step << " " << k;
        }
      }
    }
  }
}

TEST(SplitMaster, takes_the_same_steps_as_fp32) { expect_same_steps(DType::bf16); }
TEST(SplitMaster, in_fp16_takes_the_same_steps_as_fp32) { expect_same_steps(DType::fp16); }

/// The random number for element k of a call.
uint32_t word_of(const RandomRounding& rounding, int64_t k) {
  const int64_t e = rounding.first + k;
  return philox(rounding.key, 0, static_cast<uint64_t>(e / 4))[e % 4];
}

/// Values without a master copy get the fp32 update, then round by a function of key and element:
/// slices round alike, and the mean is exact (tests/kernels/random_rounding_test.cpp).
template <class Half>
void expect_rounded_steps(bool coded) {
  for (const Kernels* table : computing_tables()) {
    for (const bool adamw : {true, false}) {
      State plain(kCount, DType::fp32, coded);
      State rounded(kCount, dtype_of<Half>(), coded, false);
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      for (int64_t k = 0; k < kCount; ++k) {
        rounded.put(k, kernels::SplitFloat<Half>{from_float<Half>(normal(random))});
      }
      int64_t moved = 0;
      for (int step = 0; step < 5; ++step) {
        for (int64_t k = 0; k < kCount; ++k) {
          plain.set_master(k, rounded.master(k));
        }
        draw_gradient(random, plain);
        std::ranges::copy(plain.gradient.tensor().span<float>(),
                          rounded.gradient.tensor().get<float>());
        const RandomRounding rounding{.key = 77U + static_cast<uint64_t>(step), .first = step};
        UpdateArgs adamw_args = rounded.adamw();
        adamw_args.rounding = rounding;
        UpdateArgs sgd_args = rounded.sgd();
        sgd_args.rounding = rounding;
        if (adamw) {
          table->update(plain.stream, plain.adamw());
          table->update(rounded.stream, adamw_args);
        } else {
          table->update(plain.stream, plain.sgd());
          table->update(rounded.stream, sgd_args);
        }
        for (int64_t k = 0; k < kCount; ++k) {
          const float w = plain.master(k);
          const Half want = kernels::round_at_random<Half>(w, word_of(rounding, k));
          ASSERT_EQ(rounded.value.tensor().get<Half>()[k], want)
              << table->name << " " << step << " " << k << " " << w;
          moved += want == from_float<Half>(w) ? 0 : 1;
        }
      }
      EXPECT_GT(moved, kCount) << "they are not rounded to nearest";
    }
  }
}

TEST(ValuesAlone, take_the_steps_of_fp32_and_round_them) {
  for (const bool coded : {false, true}) {
    expect_rounded_steps<bf16>(coded);
    expect_rounded_steps<fp16>(coded);
  }
}

/// The fused pass equals decoding, a step on fp32 moments and encoding in sequence.
TEST(CodedMoments, are_decoded_and_encoded_around_the_step) {
  for (const Kernels* table : computing_tables()) {
    State fused(kCount, DType::fp32, true);
    State parts(kCount, DType::fp32, true);
    State plain(kCount);
    draw_values(fused);
    draw_values(plain);
    std::mt19937 random(5);
    const DynamicMap maps[] = {DynamicMap::with_sign, DynamicMap::without_sign};
    for (int step = 0; step < 5; ++step) {
      draw_gradient(random, fused);
      std::ranges::copy(fused.gradient.tensor().span<float>(),
                        plain.gradient.tensor().get<float>());
      table->update(fused.stream, fused.adamw());
      const auto coding = [&](auto operation) {
        for (size_t i = 0; i < 2; ++i) {
          operation(parts.moment[i].tensor(), parts.scale[i].tensor(), plain.moment[i].tensor(),
                    maps[i]);
        }
      };
      coding([&](const Tensor& codes, const Tensor& scales, const Tensor& x, DynamicMap map) {
        table->dequantize(plain.stream, {.codes = codes, .scales = scales, .x = x, .map = map});
      });
      table->update(plain.stream, plain.adamw());
      coding([&](const Tensor& codes, const Tensor& scales, const Tensor& x, DynamicMap map) {
        table->quantize(plain.stream, {.x = x, .codes = codes, .scales = scales, .map = map});
      });
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(std::ranges::equal(fused.moment[i].tensor().span<uint8_t>(),
                                       parts.moment[i].tensor().span<uint8_t>()));
        EXPECT_TRUE(std::ranges::equal(fused.scale[i].tensor().span<float>(),
                                       parts.scale[i].tensor().span<float>()));
      }
      EXPECT_TRUE(std::ranges::equal(fused.value.tensor().span<float>(),
                                     plain.value.tensor().span<float>()))
          << table->name << " step " << step;
    }
  }
}

/// The longest step of any element, in learning rates, while gradients of very different sizes
/// share blocks and many of them vanish in turn. With fp32 moments it is about 1.
float longest_step(const Kernels& table, bool coded) {
  State state(kCount, DType::fp32, coded);
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-5, 0);
  std::vector<float> size(kCount);
  for (float& s : size) {
    s = std::pow(10.0F, exponent(random));
  }
  float longest = 0;
  for (int step = 0; step < 100; ++step) {
    for (int64_t k = 0; k < kCount; ++k) {
      const bool gone = (k + step / 10) % 3 == 0;
      state.set_master(k, 0);
      state.gradient.tensor().get<float>()[k] = gone ? 0 : normal(random) * size[k];
    }
    UpdateArgs args = state.adamw();
    args.weight_decay = 0;
    args.bias_correction1 = static_cast<float>(1 - std::pow(0.9, step + 1));
    args.bias_correction2 = static_cast<float>(1 - std::pow(0.95, step + 1));
    table.update(state.stream, args);
    for (int64_t k = 0; k < kCount; ++k) {
      longest = std::fmax(longest, std::fabs(state.master(k)) / args.lr);
    }
  }
  return longest;
}

/// Moments are read and written in pieces, so that the fp32 numbers of a device take little memory.
TEST(CodedMoments, have_the_same_codes_in_pieces) {
  constexpr int64_t kLong = sparse::OptimizerArrays::kPiece + 3 * kQuantizeBlock + 77;
  Arena arena;
  Stream stream(arena, 1);
  const Kernels& table = by_name("cpu");
  const sparse::Extent extent{.offset = 0, .kept = kLong};
  sparse::OptimizerArrays arrays(stream, table,
                                 {.copies = {sparse::MasterCopy::same_as_value}, .state_bits = 8},
                                 std::span(&extent, 1));
  std::vector<float> numbers(static_cast<size_t>(kLong));
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::ranges::generate(numbers, [&] { return normal(random); });
  arrays.set(sparse::StatePart::moment1, 0, numbers);

  const State whole(kLong, DType::fp32, true);
  const Tensor codes = whole.moment[0].tensor();
  const Tensor x(numbers.data(), DType::fp32, Shape{kLong});
  table.quantize(stream, {.x = x, .codes = codes, .scales = whole.scale[0].tensor()});
  const Tensor found = arrays.view(sparse::StatePart::moment1, 0);
  EXPECT_TRUE(std::ranges::equal(found.span<uint8_t>(), codes.span<uint8_t>()));
  table.dequantize(stream, {.codes = codes, .scales = whole.scale[0].tensor(), .x = x});
  EXPECT_EQ(arrays.whole(sparse::StatePart::moment1, 0), numbers);
}

TEST(CodedMoments, keep_steps_bounded) {
  for (const Kernels* table : computing_tables()) {
    EXPECT_LT(longest_step(*table, false), 1.5F) << table->name;
    EXPECT_LT(longest_step(*table, true), 3.0F) << table->name;
  }
}

TEST(CodedMoments, stay_finite_from_finite_gradients) {
  for (const Kernels* table : computing_tables()) {
    State state(kCount, DType::bf16, true);
    draw_values(state);
    const float sizes[] = {1e-45F, 1e-38F, 1e-20F, 1, 1e18F, 1e25F, 3e38F, 0};
    for (int step = 0; step < 40; ++step) {
      for (int64_t k = 0; k < kCount; ++k) {
        const float size = sizes[(k + step) % (step % 3 == 0 ? 8 : 5)];
        state.gradient.tensor().get<float>()[k] = k % 2 == 0 ? size : -size;
      }
      table->update(state.stream, state.adamw());
      for (int64_t k = 0; k < kCount; ++k) {
        ASSERT_TRUE(std::isfinite(state.master(k))) << table->name << " " << step << " " << k;
      }
      for (const Buffer& scale : state.scale) {
        for (const float s : scale.tensor().span<float>()) {
          ASSERT_TRUE(std::isfinite(s)) << table->name << " " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier::kernels::optimizer_states_test
