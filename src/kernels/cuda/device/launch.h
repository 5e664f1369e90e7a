#pragma once
// Every kernel of ours is started here: launch(kernel, {.name, .grid, .block, .shared_bytes},
// stream, arguments…). It returns before the kernel has run; the stream's queue does its work in
// order. Throws Failure with the kernel's name when the device refuses it. A grid of no blocks is
// nothing. On a dry arena nothing is started and no device is needed: a call then only asks for its
// workspace.
//
// <native/simt.h> is CUDA itself (native/simt.h) or, in tests, a host stand-in: kernels are the same
// source for both, and ESPALIER_GPU names the namespace that keeps the two apart.
//
// Pointers that kernels get are the device's: so are all pointers of Args, but for
// PredictArgs::terms, which is read when the call is made.
#include <simt.h>

#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

struct Launch {
  const char* name = "";
  dim3 grid;
  dim3 block = dim3(256);
  size_t shared_bytes = 0;
};

inline DeviceQueue& queue_of(Stream& stream) {
  auto* queue = dynamic_cast<DeviceQueue*>(stream.queue());
  require(queue != nullptr, "kernels of a device need a stream with a queue of that device");
  return *queue;
}

template <class... Params, class... Arguments>
void launch(void (*kernel)(Params...), const Launch& shape, Stream& stream,
            const Arguments&... arguments) {
  static_assert(sizeof...(Params) == sizeof...(Arguments));
  static_assert((size_t{0} + ... + sizeof(Params)) <= 4000,
                "any driver passes as much to a kernel");
  if (stream.arena().dry()) {
    return;
  }
  if (shape.grid.x != 0 && shape.grid.y != 0 && shape.grid.z != 0) {
    queue_of(stream).launch(shape, kernel, static_cast<Params>(arguments)...);
  }
}

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// An extent of a grid; y and z end at 65,535.
inline unsigned blocks_for(int64_t work, int64_t per_block) {
  const int64_t blocks = divide_up(work, per_block);
  require(blocks >= 0 && blocks < (int64_t{1} << 31), "a grid has fewer than 2^31 blocks", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace espalier::kernels::ESPALIER_GPU
