// Table "cuda-simt", with both orders of threads.
#include "src/kernels/cuda/table.h"
#include "tests/kernels/tested_tables.h"
#include "tests/simt/queue.h"

namespace espalier::kernels {

const std::vector<TestedTable>& tested_tables() {
  static const std::vector<TestedTable> tables{
      {.kernels = &cuda_simt::table(),
       .most_elements = 20'000,
       .random_seeds = 12,
       .delays = true,
       .plans_exactly = true,
       .with_stream = [](int variation, const auto& work) {
         Arena arena;
         simt::Queue queue(variation == 0 ? simt::Order::ascending : simt::Order::descending);
         Stream stream(arena, 1, &queue);
         work(stream);
         stream.synchronize();
       }}};
  return tables;
}

std::string why_no_table() { return {}; }

}  // namespace espalier::kernels
