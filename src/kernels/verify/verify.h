#pragma once
// Preconditions of each operation's arguments (types, shapes, contiguity), and the cost of a call;
// each source of this folder defines those of the header of its name in operations/.
// Every table checks its arguments before the kernel runs, "dry" included, so a dry run finds the
// same mistakes. Throws Bug. Reads no element.
//
//   verify(args), cost(args)    for every operation of operations.def; for Each<Args>, of all its
//                               arguments
#include "src/kernels/kernels.h"

namespace espalier::kernels {

template <class Args>
struct ElementOf {
  using type = Args;
};
template <class Args>
struct ElementOf<Each<Args>> {
  using type = Args;
};

#define ESPALIER_OPERATION(row, Args, on_cpu)     \
  void verify(const ElementOf<Args>::type& args); \
  DryCount cost(const ElementOf<Args>::type& args);
#include "src/kernels/operations.def"

// Always inlined, because the CPU tables call them (see cpu/table.h).
template <class Args>
[[gnu::always_inline]] inline void verify(const Each<Args>& all) {
  for (const Args& args : all) {
    verify(args);
  }
}
template <class Args>
[[gnu::always_inline]] inline DryCount cost(const Each<Args>& all) {
  DryCount sum;
  for (const Args& args : all) {
    sum += cost(args);
  }
  return sum;
}

void verify(const WireFormat& format);

}  // namespace espalier::kernels
