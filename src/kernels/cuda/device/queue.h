#pragma once
// A CUDA stream as the queue behind core's Stream, and events that order two of them. Calls return
// at once; a call that CUDA refuses throws Failure with its reason, and so does `synchronize` for
// what went wrong in a kernel. One queue is used by one thread at a time; it belongs to one device,
// which calls make the thread's own. Queues beside another (core/device.h) are used by its thread.
//
// Calls are recorded by stream capture, which ends as a CUDA graph (CUDA programming guide, "CUDA
// Graphs"). An event of a capture is good for streams in it alone, so marks set meanwhile are kept
// apart and forgotten at the end; what may not happen meanwhile is a Failure before CUDA is asked.
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

/// A graph, ready to be launched.
class CudaRecording final : public Recording {
 public:
  /// `used`: what its calls need, for as long as it is there.
  CudaRecording(CudaQueue& queue, cudaGraphExec_t graph,
                std::vector<std::shared_ptr<const void>> used)
      : queue_(queue), graph_(graph), used_(std::move(used)) {}
  /// When all that uses it is done.
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
  std::unique_ptr<Queue> beside() override;
  void follow(Queue& other, Mark mark) override;
  /// Of the first queue of its device.
  bool begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void replay(Recording& recording) override;
  void* handle() override;
  std::string device_id() const override;
  /// This queue and those beside it, whatever has gone wrong.
  void finish_all() noexcept;
  /// Those beside it go on when it has done what it was asked for so far.
  void hold_others();
  /// Between host and device in any direction; host memory must be pinned to be copied late.
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

  /// The device's copy of what the host never changes.
  const void* constant(const void* host, size_t bytes);

  /// For dense products; made when it is first asked for.
  Blas& blas();
  /// For sparse ones, where there is cuSPARSE; likewise.
  CusparseHandle& cusparse();
  /// For attention, where there is cuDNN; likewise.
  Cudnn& cudnn();

  /// Whether calls of the device are recorded.
  bool recording() const { return first().records_; }
  /// Throws Failure then: "what, while calls are recorded".
  void refuse_recording(const char* what) const;
  /// What a call that is recorded needs for as long as it may be replayed.
  void hold(std::shared_ptr<const void> used);
  /// Memory was to be given back: done when the recording has ended, which comes to nothing.
  void after_recording(std::function<void()> give_back);

  int device() const { return device_; }
  /// Makes it the calling thread's, as calls do that the driver answers for the present device.
  void use_device() const;
  cudaStream_t native() const { return stream_; }
  /// How often the host waited for all of it.
  int64_t synchronized() const { return synchronized_; }

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
  CudaQueue* first_ = nullptr;      ///< of one beside it
  std::vector<CudaQueue*> others_;  ///< beside this one
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<CusparseHandle> cusparse_;
  std::unique_ptr<Cudnn> cudnn_;
  std::map<const void*, void*> constants_;
  int64_t synchronized_ = 0;
  std::deque<Marked> marks_;  ///< that are not known to have passed, in order
  std::vector<std::unique_ptr<CudaEvent>> spare_events_;
  Mark last_mark_ = 0;
  bool captured_ = false;              ///< its calls are recorded
  std::deque<Marked> captured_marks_;  ///< set meanwhile
  // Of the first queue:
  bool records_ = false;
  bool spoilt_ = false;  ///< what is recorded uses memory that is to be given back
  std::vector<std::shared_ptr<const void>> held_;
  std::vector<std::function<void()>> given_back_;
};

/// That of a stream of a device.
CudaQueue& queue_of(Stream& stream);

}  // namespace espalier::kernels::ESPALIER_GPU
