// Every kernel case on every table under test (tested_tables.h): values against the reference, the
// same bits in all variations, workspace as planned, NaN, large inputs.
#include <cmath>
#include <limits>
#include <map>

#include "src/kernels/rules/master.h"
#include "tests/kernels/all_kernel_cases.h"
#include "tests/kernels/cudnn_way.h"
#include "tests/kernels/kernel_checks.h"

namespace espalier::kernels::kernels_test {
namespace {

/// A part of the cases, so that the log of a slow tool shows which parts it has finished.
struct Group {
  const char* name;
  void (*add)(Cases& cases);
};
constexpr Group kGroups[] = {{"math", add_math_cases},
                             {"transformer", add_transformer_cases},
                             {"block", add_block_cases},
                             {"memory", add_memory_cases},
                             {"generation", add_generation_cases},
                             {"sparse", add_sparse_cases},
                             {"sparse_convolution", add_sparse_convolution_cases}};

class KernelCases : public ::testing::TestWithParam<Group> {
 protected:
  void SetUp() override {
    if (tested_tables().empty()) {
      GTEST_SKIP() << why_no_table();
    }
    if (cases().empty()) {
      GTEST_SKIP() << "rows that the tables under test do not have";
    }
  }
  /// The cases of the group, made once: drawing their operands takes longer than most tests.
  static const Cases& cases() {
    static std::map<std::string, Cases> made;  // destroyed before the arenas of tested_tables()
    const auto& [at, first] = made.try_emplace(GetParam().name);
    if (first) {
      GetParam().add(at->second);
      drop_unsupported(at->second);
    }
    return at->second;
  }
  /// Calls body(case, table), for cases whose operands are small enough to be called often.
  template <class Body>
  static void for_small(const Body& body) {
    for (const Case& one : cases()) {
      for (const TestedTable& table : tested_tables()) {
        if (up_to(one, std::min<int64_t>(8000, table.most_elements))) {
          body(one, table);
        }
      }
    }
  }
};

TEST_P(KernelCases, agree_with_the_reference) {
  for (const Case& one : cases()) {
    const std::vector<Values> want = expected(one);
    for (const TestedTable& table : tested_tables()) {
      expect_reference(one, table, want, table.most_elements);
    }
  }
}

bool any_nan(const Case& one, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t j = 0; one.operands[i].output && j < tensors[i].count(); ++j) {
      if (std::isnan(read(tensors[i], j))) {
        return true;
      }
    }
  }
  return false;
}

TEST_P(KernelCases, nan_in_an_input_reaches_an_output) {
  for_small([](const Case& one, const TestedTable& table) {
    for (size_t i = 0; i < one.operands.size() && one.passes_nan; ++i) {
      const Operand& operand = one.operands[i];
      if (operand.input && is_number(operand.dtype)) {
        const Memories memories(one);
        write(memories.tensors()[i], operand.nan_at, std::numeric_limits<double>::quiet_NaN());
        run(one, table, memories);
        EXPECT_TRUE(any_nan(one, memories.tensors()))
            << table.kernels->name << " " << one.name << " operand " << i;
      }
    }
  });
}

/// A large activation, score or slope may overflow inside a formula; where the result itself is
/// finite, it must not be NaN.
TEST_P(KernelCases, large_inputs_make_no_nan) {
  constexpr double kFactor = 100;
  for_small([](Case one, const TestedTable& table) {
    if (!one.any_inputs) {
      return;
    }
    for (Operand& operand : one.operands) {
      for (double& value : operand.values) {
        const bool scaled = operand.input && is_number(operand.dtype);
        value = scaled ? rounded(operand.dtype, kFactor * value) : value;
      }
    }
    const std::vector<Values> want = expected(one);
    const Memories memories(one);
    run(one, table, memories);
    int64_t broken = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const bool made = one.operands[i].output && is_number(one.operands[i].dtype);
      for (int64_t j = 0; made && j < memories.tensors()[i].count(); ++j) {
        const bool finite = std::isfinite(want[i][j]);
        broken += finite && std::isnan(read(memories.tensors()[i], j)) ? 1 : 0;
      }
    }
    EXPECT_EQ(broken, 0) << table.kernels->name << " " << one.name;
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, KernelCases, ::testing::ValuesIn(kGroups),
                         [](const auto& about) { return about.param.name; });

/// The results of both passes of attention with the settings of `s`, each on fixed inputs.
std::string attention_bytes(const TestedTable& table, const reference::Attention& s, DType dtype) {
  const Case forward = attention_case(s, dtype);
  Case backward = forward;
  backward.operands.push_back(input(dtype, forward.operands[1].shape));
  backward.operands.push_back(output(dtype, forward.operands[0].shape, {}));
  backward.run = attention_backward_run(s);
  std::string all;
  for (Case one : {forward, backward}) {
    for (size_t i = 0; i < one.operands.size(); ++i) {
      one.operands[i].values = draw(i, one.operands[i].shape.count(), -1, 1);
    }
    const Memories memories(one);
    run(one, table, memories);
    all += memories.bytes();
  }
  return all;
}

/// As many heads of k and v as of q are those of a call without kv_heads; a window of all tokens
/// hides nothing; the scale 1 / sqrt(D) is the default. All to the bit.
TEST(KernelAttention, settings_without_effect_change_no_bit) {
  const testing::AttentionWay way("own");  // the library computes some of these calls only
  for (const TestedTable& table : tested_tables()) {
    for (const DType dtype : kNumbers) {
      const reference::Attention plain{2, 131, 2, dtype == kFp32 ? 20 : 64};
      const std::string want = attention_bytes(table, plain, dtype);
      reference::Attention other = plain;
      other.kv_heads = 2;
      EXPECT_TRUE(attention_bytes(table, other, dtype) == want) << "kv_heads " << text(dtype);
      other.scale = 1.0F / std::sqrt(static_cast<float>(plain.width));
      EXPECT_TRUE(attention_bytes(table, other, dtype) == want) << "scale " << text(dtype);
      for (const int64_t window : {131, 100000}) {
        other.window = window;
        EXPECT_TRUE(attention_bytes(table, other, dtype) == want)
            << table.kernels->name << " window " << window << " " << text(dtype);
      }
      other.window = 130;
      EXPECT_FALSE(attention_bytes(table, other, dtype) == want);
    }
  }
}

/// Number k: each exponent with each sign. Mantissas are random, near the ends and midpoints of
/// halves, or exact in bf16.
float number_of_any_kind(int64_t k) {
  const Philox drawn = philox(11, 0, static_cast<uint64_t>(k));
  constexpr uint32_t kEnds[]{0,      1,      0x0fff,  0x1000,   0x1fff,   0x2000,   0x7fff,
                             0x8000, 0xffff, 0x10000, 0x7fe000, 0x7fefff, 0x7ff000, 0x7fffff};
  const uint32_t mantissa = k % 3 == 0   ? drawn[0] & 0x7fffffU
                            : k % 3 == 1 ? kEnds[drawn[0] % std::size(kEnds)]
                                         : drawn[0] % 128 << 16;
  // Odd k: exponents near the range of fp16, including its subnormal numbers and overflow.
  const uint32_t exponent = k % 2 == 0 ? drawn[1] % 256 : 78 + drawn[1] % 70;
  return std::bit_cast<float>(drawn[2] % 2 << 31 | exponent << 23 | mantissa);
}

/// SGD from zero with rate -1 sets the value to the gradient, for any gradient.
template <class Half>
void expect_rounds_by_the_rule(const Kernels& table, Stream& stream) {
  constexpr int64_t kCount = 100'003;
  constexpr RandomRounding kDraw{.key = 0xfedcba9876543210, .first = 6};
  Arena& arena = stream.arena();
  const auto buffer = [&](DType dtype) {
    return arena.allocate(Memory::scratch, "operand", dtype, Shape{kCount});
  };
  const Buffer gradient = buffer(DType::fp32);
  const Buffer value = buffer(dtype_of<Half>());
  const Buffer moment = buffer(DType::fp32);
  const Mirror given(stream, gradient.tensor());
  for (int64_t k = 0; k < kCount; ++k) {
    given.host().get<float>()[k] = number_of_any_kind(k);
  }
  given.write();
  table.update(stream, UpdateArgs{.rule = UpdateRule::sgd,
                                  .gradient = gradient.tensor(),
                                  .value = value.tensor(),
                                  .moment1 = moment.tensor(),
                                  .lr = -1,
                                  .beta1 = 0,
                                  .rounding = kDraw});
  const Mirror got(stream, value.tensor());
  got.read();
  int64_t special = 0;
  for (int64_t k = 0; k < kCount; ++k) {
    const int64_t e = kDraw.first + k;
    const float w = 0.0F + given.host().get<float>()[k];
    const uint32_t word = philox(kDraw.key, 0, static_cast<uint64_t>(e / 4))[e % 4];
    ASSERT_EQ(got.host().get<Half>()[k].bits, round_at_random<Half>(w, word).bits)
        << table.name << " " << k << " " << w;
    special += std::isfinite(w) ? 0 : 1;
  }
  EXPECT_GT(special, 100);
}

TEST(KernelRounding, follows_the_rule_bit_by_bit) {
  for (const TestedTable& table : tested_tables()) {
    table.with_stream(0, [&](Stream& stream) {
      expect_rounds_by_the_rule<bf16>(*table.kernels, stream);
      expect_rounds_by_the_rule<fp16>(*table.kernels, stream);
    });
  }
}

}  // namespace
}  // namespace espalier::kernels::kernels_test
