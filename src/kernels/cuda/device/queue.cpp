#include "src/kernels/cuda/device/queue.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "src/kernels/cuda/cudnn/handle.h"
#include "src/kernels/cuda/dense/blas_cublaslt.h"
#include "src/kernels/cuda/sparse/cusparse.h"

namespace espalier::kernels::ESPALIER_GPU {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) {
    return;
  }
  static_cast<void>(cudaGetLastError());  // clears it; the next call would report it again
  throw Failure(
      fmt::format("CUDA, {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)),
      true);
}

CudaEvent::CudaEvent() {
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
}

CudaEvent::~CudaEvent() { static_cast<void>(cudaEventDestroy(event_)); }

void CudaEvent::synchronize() const {
  check_cuda(cudaEventSynchronize(event_), "waiting for an event");
}

bool CudaEvent::passed() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // not a failure of this call or the next
    return false;
  }
  check_cuda(status, "state of an event");
  return true;
}

CudaTimePoint::CudaTimePoint(cudaStream_t stream) {
  check_cuda(cudaEventCreate(&event_), "event");
  check_cuda(cudaEventRecord(event_, stream), "recording an event");
}

CudaTimePoint::~CudaTimePoint() { static_cast<void>(cudaEventDestroy(event_)); }

double CudaTimePoint::seconds_since(const TimePoint& earlier) const {
  check_cuda(cudaEventSynchronize(event_), "waiting for an event");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, dynamic_cast<const CudaTimePoint&>(earlier).event_,
                                  event_),
             "timing");
  return milliseconds * 1e-3;
}

CudaQueue::CudaQueue(int device) : device_(device) {
  use_device();
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
}

CudaQueue::CudaQueue(CudaQueue& first) : Queue(&first), device_(first.device_), first_(&first) {
  use_device();
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  first_->others_.push_back(this);
}

CudaQueue::~CudaQueue() {
  if (first_ != nullptr) {
    std::erase(first_->others_, this);
  }
  static_cast<void>(cudaStreamSynchronize(stream_));
  if (cudnn_ != nullptr) {
    give_back_cudnn(device_, std::move(cudnn_));
  }
  cusparse_.reset();
  for (const auto& [host, copy] : constants_) {
    static_cast<void>(cudaFree(copy));
  }
  static_cast<void>(cudaStreamDestroy(stream_));
}

void CudaQueue::use_device() const { check_cuda(cudaSetDevice(device_), "choosing the device"); }

void CudaQueue::synchronize() {
  refuse_recording("waiting for a queue");
  use_device();
  if (has_wait_hook()) {
    // The callback may enqueue more work, which may wait for another host. Wait only for work so
    // far.
    const Mark so_far = last_mark_;
    CudaEvent all;
    record(all);
    wait_for(all);
    drop_marks(so_far);
    return;
  }
  check_cuda(cudaStreamSynchronize(stream_), "waiting for the device");
  drop_marks(last_mark_);
}

void CudaQueue::wait_for(const CudaEvent& event) const {
  if (!has_wait_hook()) {
    event.synchronize();
    return;
  }
  while (!event.passed()) {
    run_wait_hook();
    std::this_thread::yield();
  }
}

std::unique_ptr<Queue> CudaQueue::make_queue() {
  require(first_ == nullptr, "queues stand beside the first of their device", device_);
  return std::unique_ptr<Queue>(new CudaQueue(*this));
}

void CudaQueue::follow(Queue& other, Mark mark) {
  auto* queue = dynamic_cast<CudaQueue*>(&other);
  require(queue != nullptr && queue->device_ == device_, "queues of one device", device_);
  if (queue->captured_) {
    const auto found = std::ranges::find(queue->captured_marks_, mark, &Marked::mark);
    check(found != queue->captured_marks_.end(), "a mark from before, while calls are recorded");
    captured_ = true;  // the wait itself adds this stream to the capture
    wait(*found->event);
    return;
  }
  check(!captured_, "a queue outside is followed while calls are recorded");
  const auto found = std::ranges::find(queue->marks_, mark, &Marked::mark);
  if (found != queue->marks_.end()) {  // otherwise it has passed
    wait(*found->event);
  }
}

std::unique_ptr<TimePoint> CudaQueue::time_point() {
  refuse_recording("a point of time");
  use_device();
  return std::make_unique<CudaTimePoint>(stream_);
}

void* CudaQueue::handle() {
  use_device();
  return stream_;
}

std::string CudaQueue::device_id() const {
  cudaDeviceProp about;
  check_cuda(cudaGetDeviceProperties(&about, device_), "properties of a device");
  std::string id;
  for (const char byte : about.uuid.bytes) {
    id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return id;
}

void CudaQueue::finish_all() noexcept {
  for (CudaQueue* queue : others_) {
    queue->finish_all();
  }
  try {
    synchronize();
  } catch (const Error&) {  // callers that need results synchronize and have received the error
    static_cast<void>(cudaStreamSynchronize(stream_));
  }
}

void CudaQueue::hold_others() {
  for (CudaQueue* queue : others_) {
    queue->follow(*this, mark());
  }
}

Mark CudaQueue::mark() {
  use_device();
  if (captured_) {
    return mark_in(captured_marks_);
  }
  static_cast<void>(passed(last_mark_));  // releases the events of marks that have passed
  return mark_in(marks_);
}

Mark CudaQueue::mark_in(std::deque<Marked>& marks) {
  if (spare_events_.empty()) {
    spare_events_.push_back(std::make_unique<CudaEvent>());
  }
  record(*spare_events_.back());
  marks.push_back({.mark = ++last_mark_, .event = std::move(spare_events_.back())});
  spare_events_.pop_back();
  return last_mark_;
}

bool CudaQueue::passed(Mark mark) {
  refuse_recording("polling a mark");
  while (!marks_.empty() && marks_.front().mark <= mark && marks_.front().event->passed()) {
    drop_marks(marks_.front().mark);
  }
  return marks_.empty() || marks_.front().mark > mark;
}

void CudaQueue::wait(Mark mark) {
  refuse_recording("waiting for a mark");
  const auto found = std::ranges::find(marks_, mark, &Marked::mark);
  if (found != marks_.end()) {
    wait_for(*found->event);
    drop_marks(mark);
  }
}

/// Releases the events of marks up to `mark`, which have passed.
void CudaQueue::drop_marks(Mark mark) {
  while (!marks_.empty() && marks_.front().mark <= mark) {
    spare_events_.push_back(std::move(marks_.front().event));
    marks_.pop_front();
  }
}

void CudaQueue::refuse_recording(const char* what) const {
  check(!recording(), "{}, while calls are recorded", what);
}

void CudaQueue::hold(std::shared_ptr<const void> used) {
  if (recording()) {
    first().held_.push_back(std::move(used));
  }
}

void CudaQueue::after_recording(std::function<void()> give_back) {
  first().spoilt_ = true;
  first().given_back_.push_back(std::move(give_back));
}

/// Thread-local mode: CUDA rejects the capture if this thread makes an unsafe call, such as an
/// allocation in a library. Otherwise the graph would use memory that the library frees later.
bool CudaQueue::begin_recording() {
  require(first_ == nullptr && !records_, "one recording of a device at a time", device_);
  use_device();
  if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  records_ = captured_ = true;
  spoilt_ = false;
  return true;
}

/// Returns no graph if a queue in the capture was not joined, a call failed, or memory was freed
/// meanwhile.
std::unique_ptr<Recording> CudaQueue::end_recording() {
  require(records_, "a recording has begun", device_);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  const bool whole = cudaStreamEndCapture(stream_, &graph) == cudaSuccess && !spoilt_;
  const bool made = whole && cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess;
  if (graph != nullptr) {
    static_cast<void>(cudaGraphDestroy(graph));
  }
  std::vector<std::shared_ptr<const void>> held = std::exchange(held_, {});
  leave_recording();
  std::unique_ptr<Recording> recording;
  if (made) {
    recording = std::make_unique<CudaRecording>(*this, ready, std::move(held));
    if (cudaGraphUpload(ready, stream_) != cudaSuccess) {
      recording.reset();
    }
  }
  static_cast<void>(cudaGetLastError());  // a direct call reports the error again
  return recording;
}

/// Events of a capture can be reused: they are recorded again before any wait.
void CudaQueue::leave_recording() {
  for (CudaQueue* queue : others_) {
    queue->leave_recording();
  }
  for (Marked& marked : captured_marks_) {
    spare_events_.push_back(std::move(marked.event));
  }
  captured_marks_.clear();
  records_ = captured_ = false;
  if (!given_back_.empty()) {
    finish_all();
    for (const auto& give_back : std::exchange(given_back_, {})) {
      give_back();
    }
  }
}

void CudaQueue::replay(Recording& recording) {
  auto* graph = dynamic_cast<CudaRecording*>(&recording);
  require(graph != nullptr && &graph->queue() == this, "a recording of this queue", device_);
  refuse_recording("a replay");
  use_device();
  check_cuda(cudaGraphLaunch(graph->native(), stream_), "launching a graph");
}

CudaRecording::~CudaRecording() {
  queue_.finish_all();
  static_cast<void>(cudaGraphExecDestroy(graph_));
}

void CudaQueue::copy(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy");
}

void CudaQueue::fill(void* to, int byte, size_t bytes) {
  check_cuda(cudaMemsetAsync(to, byte, bytes, stream_), "fill");
}

void CudaQueue::record(CudaEvent& event) {
  check_cuda(cudaEventRecord(event.native(), stream_), "recording an event");
}

void CudaQueue::wait(const CudaEvent& event) {
  check_cuda(cudaStreamWaitEvent(stream_, event.native(), 0), "making a stream wait");
}

void CudaQueue::start(const Call& call) {
  constexpr size_t kWithoutAsking = 32 << 10;  // of 48 KiB; static shared memory counts as well
  use_device();
  if (call.shared_bytes > kWithoutAsking) {
    check_cuda(cudaFuncSetAttribute(call.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(call.shared_bytes)),
               call.name);
  }
  check_cuda(cudaLaunchKernel(call.kernel, call.grid, call.block, call.arguments, call.shared_bytes,
                              stream_),
             call.name);
}

Blas& CudaQueue::blas() {
  if (blas_ == nullptr) {
    use_device();
    int major = 0;
    int minor = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_),
               "compute capability");
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_),
               "compute capability");
    blas_ = std::make_unique<Blas>(10 * major + minor);
  }
  return *blas_;
}

CusparseHandle& CudaQueue::cusparse() {
  if (cusparse_ == nullptr) {
    use_device();
    cusparse_ = std::make_unique<CusparseHandle>(stream_);
  }
  return *cusparse_;
}

Cudnn& CudaQueue::cudnn() {
  use_device();
  if (cudnn_ == nullptr) {
    cudnn_ = take_cudnn(device_);
    cudnn_->use_stream(stream_);
  }
  return *cudnn_;
}

size_t blas_workspace() { return size_t{32} << 20; }  // NVIDIA's recommendation for Hopper

CudaQueue& queue_of(Stream& stream) {
  auto* queue = dynamic_cast<CudaQueue*>(stream.queue());
  require(queue != nullptr, "kernels of a device need a stream with a queue of that device");
  return *queue;
}

BlasQueue blas_queue(Stream& stream) {
  CudaQueue& queue = queue_of(stream);
  return {queue.blas(), queue.native(), blas_workspace()};
}

double seconds_of(Stream& stream, const std::function<void()>& work) {
  const CudaTimePoint begin(blas_queue(stream).native);
  work();
  return CudaTimePoint(blas_queue(stream).native).seconds_since(begin);
}

const void* CudaQueue::constant(const void* host, size_t bytes) {
  void*& made = constants_[host];
  if (made == nullptr) {
    refuse_recording("memory for a table");
    use_device();
    check_cuda(cudaMalloc(&made, bytes), "memory for a table");
    copy(made, host, bytes);
  }
  return made;
}

Cudnn& cudnn_of(Stream& stream) { return queue_of(stream).cudnn(); }

bool keep_for_recording(Stream& stream, const std::shared_ptr<const CudnnPlan>& plan) {
  CudaQueue& queue = queue_of(stream);
  queue.hold(plan);
  return queue.recording();
}

}  // namespace espalier::kernels::ESPALIER_GPU
