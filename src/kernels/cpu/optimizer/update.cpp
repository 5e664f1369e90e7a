#include "src/kernels/cpu/optimizer/update.h"

#include "src/kernels/cpu/table.h"
#include "src/kernels/rules/update.h"

namespace espalier::kernels::ESPALIER_ISA {

void update(Stream& stream, const Each<UpdateArgs>& all) {
  for (const UpdateArgs& args : all) {
    rules::with_rule(args.rule, [&](auto rule) { step(stream, decltype(rule)::of(args), args); });
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
