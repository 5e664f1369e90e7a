#pragma once
// A CUDA stream as the queue behind core's Stream, and the events that order two streams.
//
// - Calls are asynchronous. A call that CUDA refuses throws Failure with its reason; `synchronize`
//   throws for errors inside kernels.
// - One thread at a time uses a queue. A queue belongs to one device, which its calls make current.
//   Queues beside another (core/device.h) are used by the same thread.
// - Recording uses stream capture, which ends in a CUDA graph (CUDA programming guide, "CUDA
//   Graphs"). An event recorded during capture is valid only for streams in that capture. So marks
//   set during capture are kept apart, and dropped at its end. A call that is not allowed during
//   capture throws Failure before it calls CUDA.
#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "src/core/stream.h"

namespace espalier::kernels::ESPALIER_GPU {

class Blas;
class Cudnn;
class CusparseHandle;

/// Throws Failure unless `status` is success: "what: reason".
void check_cuda(cudaError_t status, const char* what);

class CudaQueue;

class CudaEvent {
 public:
  CudaEvent();
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void synchronize() const;
  bool passed() const;
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// An event that has a time; resolution about half a microsecond.
class CudaTimePoint final : public TimePoint {
 public:
  explicit CudaTimePoint(cudaStream_t stream);
  ~CudaTimePoint() override;
  double seconds_since(const TimePoint& earlier) const override;

 private:
  cudaEvent_t event_ = nullptr;
};

/// An executable graph.
class CudaRecording final : public Recording {
 public:
  /// `used`: resources of its calls, kept until it is destroyed.
  CudaRecording(CudaQueue& queue, cudaGraphExec_t graph,
                std::vector<std::shared_ptr<const void>> used)
      : queue_(queue), graph_(graph), used_(std::move(used)) {}
  /// Waits until all queues of the device have finished.
  ~CudaRecording() override;
  cudaGraphExec_t native() const { return graph_; }
  const CudaQueue& queue() const { return queue_; }

 private:
  CudaQueue& queue_;
  cudaGraphExec_t graph_;
  std::vector<std::shared_ptr<const void>> used_;
};

class CudaQueue : public Queue {
 public:
  explicit CudaQueue(int device);
  ~CudaQueue() override;

  void synchronize() override;
  std::unique_ptr<Queue> make_queue() override;
  void follow(Queue& other, Mark mark) override;
  /// Only on the first queue of its device.
  bool begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void replay(Recording& recording) override;
  std::unique_ptr<TimePoint> time_point() override;
  void* handle() override;
  std::string device_id() const override;
  /// Waits for this queue and those beside it, even after an error.
  void finish_all() noexcept;
  /// The queues beside it wait for all work enqueued on this queue so far.
  void hold_others();
  /// Copies between host and device in any direction; asynchronous only with pinned host memory.
  void copy(void* to, const void* from, size_t bytes) override;
  Mark mark() override;
  bool passed(Mark mark) override;
  void wait(Mark mark) override;
  void fill(void* to, int byte, size_t bytes);
  void record(CudaEvent& event);
  void wait(const CudaEvent& event);

  /// `shape`: {.name, .grid, .block, .shared_bytes}.
  template <class Shape, class... Params>
  void launch(const Shape& shape, void (*kernel)(Params...), Params... arguments) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
    const Call call{shape.name,         reinterpret_cast<const void*>(kernel),
                    shape.grid,         shape.block,
                    shape.shared_bytes, pointers};
    start(call);
  }

  /// The device's copy of a constant host array, made once.
  const void* constant(const void* host, size_t bytes);

  /// For dense products; created on first use.
  Blas& blas();
  /// For sparse products, if cuSPARSE is available; created on first use.
  CusparseHandle& cusparse();
  /// For attention and convolutions, if cuDNN is available; created on first use.
  Cudnn& cudnn();

  /// True while calls of the device are recorded.
  bool recording() const { return first().records_; }
  /// Throws Failure during recording: "what, while calls are recorded".
  void refuse_recording(const char* what) const;
  /// During recording, keeps a resource of a recorded call as long as the recording may be
  /// replayed.
  void hold(std::shared_ptr<const void> used);
  /// Defers freeing memory to the end of the recording. The recording then yields no graph.
  void after_recording(std::function<void()> give_back);

  int device() const { return device_; }
  /// Makes its device current for the calling thread, for driver calls that use the current device.
  void use_device() const;
  cudaStream_t native() const { return stream_; }

 private:
  explicit CudaQueue(CudaQueue& first);
  void wait_for(const CudaEvent& event) const;

  struct Call {
    const char* name;
    const void* kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void** arguments;
  };
  void start(const Call& call);
  void drop_marks(Mark mark);
  struct Marked {
    Mark mark = 0;
    std::unique_ptr<CudaEvent> event;
  };
  Mark mark_in(std::deque<Marked>& marks);
  const CudaQueue& first() const { return first_ != nullptr ? *first_ : *this; }
  CudaQueue& first() { return first_ != nullptr ? *first_ : *this; }
  void leave_recording();

  int device_;
  CudaQueue* first_ = nullptr;      ///< null in the first queue itself
  std::vector<CudaQueue*> others_;  ///< the queues beside this one
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<CusparseHandle> cusparse_;
  std::unique_ptr<Cudnn> cudnn_;
  std::map<const void*, void*> constants_;
  std::deque<Marked> marks_;  ///< marks not known to have passed, in order
  std::vector<std::unique_ptr<CudaEvent>> spare_events_;
  Mark last_mark_ = 0;
  bool captured_ = false;              ///< calls of this queue are recorded
  std::deque<Marked> captured_marks_;  ///< marks set during the recording
  // Used in the first queue only:
  bool records_ = false;
  bool spoilt_ = false;  ///< the recorded calls use memory that is to be freed
  std::vector<std::shared_ptr<const void>> held_;
  std::vector<std::function<void()>> given_back_;
};

/// The queue of a device's stream.
CudaQueue& queue_of(Stream& stream);

}  // namespace espalier::kernels::ESPALIER_GPU
