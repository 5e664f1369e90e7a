// Updates with random rounding on the table "cuda-simt" follow the rule, bit by bit.
#include "tests/kernels/random_rounding_case.h"

#include "src/kernels/cuda/table.h"
#include "tests/simt/queue.h"

namespace espalier {
namespace {

TEST(SimtRandomRounding, HasTheRule) {
  Arena arena;
  simt::Queue queue(simt::Order::ascending);
  Stream stream(arena, 1, &queue);
  testing::expect_rounds_by_the_rule<bf16>(kernels::cuda_simt::table(), stream);
  testing::expect_rounds_by_the_rule<fp16>(kernels::cuda_simt::table(), stream);
}

}  // namespace
}  // namespace espalier
