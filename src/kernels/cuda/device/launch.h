#pragma once
// Launches every kernel of ours: launch(kernel, {.name, .grid, .block, .shared_bytes}, stream,
// arguments…).
//
// - The call enqueues the kernel on the stream's queue and returns; kernels run in order.
// - It throws Failure with the kernel's name if the device refuses the launch.
// - An empty grid launches nothing.
// - On a dry arena nothing is launched and no device is needed: a call only allocates its
//   workspace.
//
// <native/simt.h> is CUDA itself (native/simt.h) or, in tests, a host stand-in. Both compile the
// same kernel sources; ESPALIER_GPU names the namespace that separates them.
//
// Kernels receive device pointers. So all pointers of Args are device pointers, except
// PredictArgs::terms, which the call reads on the host.
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
/// An extent of a grid; extents y and z are at most 65,535.
inline unsigned blocks_for(int64_t work, int64_t per_block) {
  const int64_t blocks = divide_up(work, per_block);
  require(blocks >= 0 && blocks < (int64_t{1} << 31), "a grid has fewer than 2^31 blocks", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace espalier::kernels::ESPALIER_GPU
