#include "src/kernels/cuda/optimizer/update.h"

#include "src/kernels/cuda/table.h"
#include "src/kernels/rules/update.h"

namespace espalier::kernels::ESPALIER_GPU {

void update(Stream& stream, const Each<UpdateArgs>& all) {
  if (!all.empty()) {
    rules::with_rule(all.front().rule, [&](auto rule) {
      step_each<decltype(rule)>(decltype(rule)::kName, stream, all);
    });
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
