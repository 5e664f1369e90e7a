#include "tests/device/late_table.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/device/operands.h"
#include "tests/simt/device.h"

namespace espalier::testing {
namespace {

using kernels::Kernels;
using simt::GuardedQueue;

/// The CPU stream on which calls finally run; its workspace is the host's.
Stream& stream_of_cpu(int threads) {
  struct Worker {
    Arena arena;
    Stream stream;
    explicit Worker(int threads) : stream(arena, threads) {}
  };
  thread_local std::map<int, std::unique_ptr<Worker>> workers;
  auto& worker = workers[threads];
  if (worker == nullptr) {
    worker = std::make_unique<Worker>(threads);
  }
  return worker->stream;
}

simt::Touch touch(const char* name, kernels::Use use) {
  return {.operand = name, .reads = use != kernels::Use::out, .writes = use != kernels::Use::in};
}

GuardedQueue& queue_of(Stream& stream) {
  auto* queue = dynamic_cast<GuardedQueue*>(stream.queue());
  require(queue != nullptr, "a stream with a queue of this kind of device");
  return *queue;
}

/// Arguments for the CPU's kernels. All addresses must be the device's; the queue records the
/// reads and writes of operation `name`.
template <class Args>
Args opened(GuardedQueue& queue, const char* name, Args args) {
  std::vector<simt::Touch> touches;
  for (const auto& [of, use, tensor] : operands(args)) {
    queue.require_known(tensor.data, of);
    if (tensor) {
      tensor.on_device = false;
      simt::Touch& made = touches.emplace_back(touch(of, use));
      made.data = tensor.data;
      made.rows = static_cast<size_t>(tensor.rows());
      made.bytes = static_cast<size_t>(tensor.cols()) * size_of(tensor.dtype);
      made.stride = static_cast<size_t>(tensor.stride) * size_of(tensor.dtype);
    }
  }
  visit_arrays(args, [&](const char* of, kernels::Use use, const void* data, size_t bytes) {
    queue.require_known(data, of);
    simt::Touch& made = touches.emplace_back(touch(of, use));
    made.data = data;
    made.bytes = bytes;
  });
  queue.operation(name, std::move(touches));
  return args;
}

template <class Args>
void enqueue(Stream& stream, const char* name, const Args& args, kernels::Op<Args> Kernels::*row) {
  GuardedQueue& queue = queue_of(stream);
  queue.enqueue([call = opened(queue, name, args), row, threads = stream.threads()] {
    (kernels::by_name("cpu").*row)(stream_of_cpu(threads), call);
  });
}

/// Terms belong to the caller and are read during the call.
void enqueue(Stream& stream, const char* name, const kernels::PredictArgs& args,
             kernels::Op<kernels::PredictArgs> Kernels::*row) {
  GuardedQueue& queue = queue_of(stream);
  const std::vector<kernels::PredictArgs::Term> terms(args.terms, args.terms + args.term_count);
  queue.enqueue(
      [call = opened(queue, name, args), terms, row, threads = stream.threads()]() mutable {
        call.terms = terms.data();
        (kernels::by_name("cpu").*row)(stream_of_cpu(threads), call);
      });
}

/// The arrays of one call may run in any order; the CPU's run one after the other.
template <class Args>
void enqueue(Stream& stream, const char* name, const kernels::Each<Args>& all,
             kernels::Op<kernels::Each<Args>> Kernels::*row) {
  GuardedQueue& queue = queue_of(stream);
  for (const Args& args : all) {
    queue.enqueue([call = opened(queue, name, args), row, threads = stream.threads()] {
      (kernels::by_name("cpu").*row)(stream_of_cpu(threads), call);
    });
  }
}

std::atomic<size_t> memory = SIZE_MAX;  // of devices that are opened from now on
std::atomic<size_t> reported_memory = SIZE_MAX;

std::unique_ptr<Device> open_device(int) {
  return std::make_unique<simt::SimulatedDevice>(memory, reported_memory);
}

constexpr Kernels make_table() {
  using namespace kernels;  // for the types of arguments
  return {
      .name = "cpu-late",
      .open = open_device,
#define ESPALIER_OPERATION(row, Args, on_cpu)                      \
  .row = [](Stream& stream, const Args& args) {                    \
    espalier::testing::enqueue(stream, #row, args, &Kernels::row); \
  },
#define ESPALIER_HOST_OPERATION(row, Args, on_cpu)
#include "src/kernels/operations.def"
  };
}
constexpr Kernels kTable = make_table();

}  // namespace

LittleMemory::LittleMemory(size_t bytes, size_t reported) {
  memory = bytes;
  reported_memory = reported;
}

LittleMemory::~LittleMemory() { memory = reported_memory = SIZE_MAX; }

const kernels::Kernels& late_table() { return kTable; }

}  // namespace espalier::testing
