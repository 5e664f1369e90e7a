#include "src/train/exchange/pipeline_reduction.h"

#include <numeric>

#include "parallel/flat.h"
#include "parallel/transport/collectives.h"
#include "src/core/mirror.h"

namespace espalier::train {
namespace {

constexpr parallel::Tag kTiedTag{parallel::kTagNumbers - 1, parallel::Traffic::allreduce};

Tensor share_of(Stage& stage) {
  sparse::Store& store = stage.store();
  return store.full_gradient(store.find(stage.tied_parameter()));
}

}  // namespace

PipelineReduction::PipelineReduction(const Layout& layout, Ranks& ranks, Stage& stage,
                                     parallel::CarrierKind carrier)
    : comm_(ranks.pipeline()), stage_(stage) {
  const parallel::Schedule& schedule = layout.schedule;
  if (stage.tied_head_on_other_stage()) {
    const int first = schedule.rank_of(0);
    is_first_ = comm_.rank() == first;
    peer_ = is_first_ ? schedule.rank_of(schedule.stages() - 1) : first;
    theirs_ = allocate_share(stage);
  }
  const bool used = !layout.asynchronous();  // asynchronous: one norm per part, no tied parameters
  if (has_stages() && used && carrier == parallel::CarrierKind::nccl) {
    std::vector<int> everyone(static_cast<size_t>(comm_.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    link_.emplace(comm_, stage.stream(), std::move(everyone), parallel::Traffic::allreduce);
  }
}

Buffer PipelineReduction::allocate_share(Stage& stage) {
  if (!stage.tied_head_on_other_stage()) {
    return {};
  }
  const Tensor mine = share_of(stage);
  return stage.store().arena().allocate(Memory::communication, "tied gradient", mine.dtype,
                                        mine.shape);
}

void PipelineReduction::reduce_tied() {
  if (!ties_two_ranks()) {
    return;
  }
  const Tensor mine = share_of(stage_);
  link_ ? exchange_on_device(mine) : exchange_through_host(mine);
  stage_.kernels().cast(stage_.stream(), {.x = theirs_.tensor(), .y = mine, .accumulate = true});
}

void PipelineReduction::exchange_on_device(const Tensor& mine) {
  link_->exchange("summing the gradient of tied embeddings", [&] {
    link_->send(peer_, parallel::flat_bytes(mine));
    link_->receive(peer_, parallel::flat_bytes(theirs_.tensor()));
  });
  link_->trace("tied embeddings");
}

void PipelineReduction::exchange_through_host(const Tensor& mine) {
  const Mirror received(stage_.stream(), theirs_.tensor());
  const Mirror sent(stage_.stream(), mine);
  const auto into = parallel::flat_bytes(received.host());
  parallel::Request receive = comm_.irecv(peer_, kTiedTag, into);
  parallel::Request send = comm_.isend(peer_, kTiedTag, parallel::flat_bytes(sent.read().host()));
  comm_.wait(receive);
  comm_.wait(send);
  received.write();
}

void PipelineReduction::copy_tied_values() {
  if (!ties_two_ranks()) {
    return;
  }
  sparse::Store& store = stage_.store();
  const Tensor values = store.part(store.value(), store.find(stage_.tied_parameter()));
  link_ ? copy_on_device(values) : copy_through_host(values);
}

void PipelineReduction::copy_on_device(const Tensor& values) {
  link_->exchange("copying tied embeddings", [&] {
    if (is_first_) {
      link_->send(peer_, parallel::flat_bytes(values));
    } else {
      link_->receive(peer_, parallel::flat_bytes(values));
    }
  });
  link_->trace("tied embeddings");
}

void PipelineReduction::copy_through_host(const Tensor& values) {
  const Mirror mirror(stage_.stream(), values);
  if (is_first_) {
    parallel::Request send =
        comm_.isend(peer_, kTiedTag, parallel::flat_bytes(mirror.read().host()));
    comm_.wait(send);
    return;
  }
  parallel::Request receive = comm_.irecv(peer_, kTiedTag, parallel::flat_bytes(mirror.host()));
  comm_.wait(receive);
  mirror.write();
}

void PipelineReduction::reduce_counts(const Tensor& counts) {
  link_->exchange("summing the norm of all stages", [&] { link_->sum_counts(counts); });
}

void PipelineReduction::reduce_words(std::span<double> words) {
  parallel::all_reduce_small(comm_, words, parallel::Combine::sum);
}

}  // namespace espalier::train
