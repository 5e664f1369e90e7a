#pragma once
// The state that a queue keeps for cuDNN.
#include <map>
#include <memory>
#include <string>

#include "src/core/stream.h"
#include "src/kernels/cuda/attention/attention_plan.h"
#include "src/kernels/cuda/dense/convolution_plan.h"

namespace espalier::kernels::ESPALIER_GPU {

/// A handle and the plans made so far. Requires cudnn_functions() to be non-null.
class Cudnn {
 public:
  Cudnn();
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  /// Runs go to this stream from now on.
  void use_stream(cudnn::Stream stream);
  cudnn::Handle handle() const { return handle_; }
  /// The plan of this shape, made at its first use.
  CudnnSupport& plan(const AttentionKey& key);
  CudnnSupport& plan(const ConvolutionKey& key);

 private:
  cudnn::Handle handle_ = nullptr;
  std::string why_not_;  ///< set if `handle_` is null: the reason why cuDNN could not start
  std::map<AttentionKey, CudnnSupport> attention_;
  std::map<ConvolutionKey, CudnnSupport> convolutions_;
};

/// Enqueues a run of `kept`. Returns "" if it was enqueued, else the reason why not; a plan whose
/// run fails is dropped. Throws Failure during graph capture, where the capture itself may have
/// failed.
std::string run_kept(Stream& stream, const Cudnn& cudnn, CudnnSupport& kept,
                     std::span<const CudnnPlace> places, void* workspace);

constexpr uintptr_t kCudnnAlignment = 256;  ///< bytes; of a workspace

/// The user's choice between cuDNN and our own kernels, a variable of the environment: "own" uses
/// only our own kernels; "cudnn" makes the refusal of an offered call an error; "auto" and "" take
/// cuDNN where it supports the call. Throws Failure for other values.
enum class CudnnUse : uint8_t { any, own, cudnn };
CudnnUse cudnn_use(const char* variable);

/// Plans outlive the queue that they were made for, because a plan takes seconds: a queue takes a
/// Cudnn of its device from the process's pool, or a new one, and gives it back at its end.
std::unique_ptr<Cudnn> take_cudnn(int device);
void give_back_cudnn(int device, std::unique_ptr<Cudnn> used);

// In device/queue.cpp:

/// The Cudnn of the stream's queue, taken on first use.
Cudnn& cudnn_of(Stream& stream);
/// Returns true during graph capture; the recording then keeps the plan for its replays.
bool keep_for_recording(Stream& stream, const std::shared_ptr<const CudnnPlan>& plan);

}  // namespace espalier::kernels::ESPALIER_GPU
