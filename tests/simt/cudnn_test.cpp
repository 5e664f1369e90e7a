// Attention through the cuDNN layer, on the host's replacement for cuDNN: graphs, plans, the run's
// operands and workspace; and cases that fall back to our own kernels.
#include <limits>

#include "tests/kernels/cudnn_way.h"
#include "tests/simt/cudnn_cases.h"
#include "tests/support/failure.h"

namespace espalier::kernels::cudnn_test {
namespace {

using reference::Attention;
using simt::cudnn_host;
using testing::AttentionWay;

class Cudnn : public CudnnCases {
 protected:
  /// Forward and backward are correct, in the given numbers of cuDNN runs.
  void expect_runs(const Attention& shape, int64_t forward, int64_t backward) {
    expect_right(attention_case(shape, kBf16));
    EXPECT_EQ(runs_, forward);
    expect_right(attention_backward_case(shape, kBf16));
    EXPECT_EQ(runs_, backward);
    buffers_.clear();
  }
};

TEST_F(Cudnn, computes_the_cases_of_the_table) {
  int64_t taken = 0;
  for (const DType dtype : {kFp32, kBf16}) {
    for (const Attention& shape : attention_shapes()) {
      const bool offered = dtype == kBf16 && shape.tokens >= 64 && shape.width % 8 == 0 &&
                           shape.groups() == shape.heads && shape.window == 0;
      for (const Case& one :
           {attention_case(shape, dtype), attention_backward_case(shape, dtype)}) {
        expect_right(one);
        EXPECT_EQ(runs_, offered ? 1 : 0) << one.name;
        taken += runs_;
        buffers_.clear();
      }
    }
  }
  EXPECT_EQ(taken, 2 * 14);
  EXPECT_EQ(cudnn_host().sums_of_dq, 0) << "two runs have the same bits";
}

TEST_F(Cudnn, adds_up_dq_in_memory_where_bits_need_not_repeat) {
  stream_.set_deterministic(false);
  Cases cases;
  add_attention_cases(cases, kBf16);
  for (const Case& one : cases) {
    expect_right(one);
    buffers_.clear();
  }
  EXPECT_EQ(cudnn_host().runs, 2 * 14);
  EXPECT_EQ(cudnn_host().sums_of_dq, 14);
}

TEST_F(Cudnn, has_gradients_of_both_kinds_beside_each_other) {
  for (const bool deterministic : {true, false, true, false}) {
    stream_.set_deterministic(deterministic);
    expect_runs({2, 70, 2, 16}, 1, 1);
  }
  EXPECT_EQ(cudnn_host().plans, 3) << "one of them forward";
  EXPECT_EQ(cudnn_host().sums_of_dq, 2);
}

TEST_F(Cudnn, shared_keys_and_windows_are_ours_scales_are_not) {
  expect_runs({1, 70, 4, 16, true, 2}, 0, 0);
  expect_runs({1, 70, 2, 16, true, 0, 9}, 0, 0);
  expect_runs({1, 70, 2, 16, true, 2, 0, 0.5F}, 1, 1);
}

TEST_F(Cudnn, keeps_a_plan_for_each_shape) {
  for (const Attention& shape :
       {Attention{1, 64, 1, 16}, {2, 64, 1, 16}, {1, 65, 1, 16}, {1, 65, 1, 16, false}}) {
    for (int again = 0; again < 2; ++again) {
      expect_runs(shape, 1, 1);
    }
  }
  EXPECT_EQ(cudnn_host().plans, 8);
}

TEST_F(Cudnn, asks_the_queue) { expect_enqueued(attention_case({1, 64, 1, 16}, kBf16), 1); }

/// Gradients of scores of one sequence take 1 MiB and 32 KiB here: 248 of them fit 256 MiB.
TEST_F(Cudnn, backward_takes_as_many_sequences_as_the_workspace_holds) {
  expect_runs({301, 64, 1, 8}, 1, 2);
  EXPECT_EQ(cudnn_host().plans, 3) << "150 and 151 sequences";
  stream_.set_deterministic(false);
  expect_runs({301, 64, 1, 8}, 1, 1);
}

TEST_F(Cudnn, what_it_refuses_is_ours) {
  cudnn_host().refused_width = 24;
  expect_runs({1, 70, 1, 24}, 0, 0);
  expect_runs({1, 70, 1, 24}, 0, 0);
  EXPECT_EQ(cudnn_host().plans, 0);
  cudnn_host().broken_width = 16;
  expect_runs({1, 70, 1, 16}, 0, 0);
  EXPECT_EQ(cudnn_host().plans, 2);
  expect_runs({1, 70, 1, 16}, 0, 0);
  EXPECT_EQ(cudnn_host().plans, 2) << "asks the library once";
  cudnn_host().more_workspace = size_t{2} << 20;
  expect_runs({1, 70, 1, 8}, 0, 0);
  expect_runs({1, 70, 1, 136}, 0, 0);
  expect_runs({1, 70, 1, 12}, 0, 0);
}

TEST_F(Cudnn, a_sum_of_dq_that_it_refuses_is_ours) {
  stream_.set_deterministic(false);
  cudnn_host().refused_width = 24;
  expect_runs({1, 70, 1, 24}, 0, 0);
  cudnn_host().broken_width = 16;
  expect_runs({1, 70, 1, 16}, 0, 0);
  cudnn_host().more_workspace = size_t{2} << 20;
  expect_runs({1, 70, 1, 8}, 0, 0);
  EXPECT_EQ(cudnn_host().sums_of_dq, 0);
}

TEST_F(Cudnn, a_sequence_that_is_too_long_for_the_workspace_is_ours) {
  constexpr int64_t kTokens = 12000;
  Arena dry(true);
  const Buffer qkv = dry.allocate(Memory::scratch, "qkv", kBf16, {1, kTokens, 24});
  const Buffer out = dry.allocate(Memory::scratch, "out", kBf16, {1, kTokens, 8});
  const Buffer lse = dry.allocate(Memory::scratch, "lse", kFp32, {1, 1, kTokens});
  Stream stream(dry, 1);
  cuda_simt::attention_backward(
      stream, {qkv.tensor(), out.tensor(), lse.tensor(), out.tensor(), qkv.tensor(), 1});
  EXPECT_LT(dry.total().peak, size_t{2} << 20);
  stream.set_deterministic(false);
  cuda_simt::attention_backward(
      stream, {qkv.tensor(), out.tensor(), lse.tensor(), out.tensor(), qkv.tensor(), 1});
  EXPECT_GT(dry.total().peak, size_t{2} << 20) << "a sum of dq has no such limit";
}

TEST_F(Cudnn, an_older_one_has_gradients_of_whole_tiles) {
  cudnn_host().version = 9'15'00;
  expect_runs({1, 130, 1, 8}, 1, 0);
  expect_runs({1, 128, 1, 8}, 1, 1);
}

TEST_F(Cudnn, missing_or_disabled_it_is_not_called) {
  {
    const AttentionWay own("own");
    expect_runs({1, 64, 2, 8}, 0, 0);
  }
  expect_runs({1, 64, 2, 8}, 1, 1);
  cudnn_host().version = 0;
  expect_runs({1, 64, 2, 8}, 0, 0);
}

TEST_F(Cudnn, says_why_it_is_not_taken_where_it_is_demanded) {
  const AttentionWay cudnn("cudnn");
  expect_runs({1, 64, 2, 8}, 1, 1);
  cudnn_host().broken_width = 16;
  EXPECT_EQ(failure_of([&] {
              run(attention_backward_case({2, 70, 3, 16}, kBf16));
            }),
            "ESPALIER_ATTENTION is cudnn, which does not support attention's gradient of 2x70 "
            "positions and 3 heads of 16: cuDNN, run of engine 1: not supported (a width that is "
            "broken); set ESPALIER_ATTENTION=auto");
  expect_right(attention_case({1, 64, 2, 8}, kFp32));
  const AttentionWay other("flash");
  EXPECT_EQ(failure_of([&] {
              run(attention_case({1, 64, 2, 8}, kBf16));
            }),
            "ESPALIER_ATTENTION is \"flash\": set it to auto, own or cudnn");
}

TEST_F(Cudnn, operands_that_are_not_aligned_are_ours) {
  expect_refused_unaligned(attention_case({1, 64, 1, 8}, kBf16));
}

/// A plan counts the workspace of the run.
TEST_F(Cudnn, plans_have_the_memory_of_runs) {
  const auto expect_planned = [&](const Case& one, bool deterministic) {
    Arena arena, dry(true);
    {
      Stream stream(arena, 1, &queue_), planned(dry, 1);
      stream.set_deterministic(deterministic);
      planned.set_deterministic(deterministic);
      const Tensors tensors = memory(one);
      one.run(cuda_simt::table(), stream, tensors);
      stream.synchronize();
      one.run(*cuda_simt::table().plan, planned, tensors);
    }
    EXPECT_EQ(arena.total().peak, dry.total().peak) << one.name;
    EXPECT_GT(arena.total().peak, size_t{1} << 20) << one.name;
  };
  for (const bool deterministic : {true, false}) {
    expect_planned(attention_case({3, 100, 2, 16}, kBf16), deterministic);
    expect_planned(attention_backward_case({3, 100, 2, 16}, kBf16), deterministic);
  }
}

}  // namespace
}  // namespace espalier::kernels::cudnn_test
