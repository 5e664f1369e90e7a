// Schedules over a vee: rank k owns stage k on the way there and stage 2p - 1 - k on the way back,
// so that the last rank hands over to itself and rank 0 computes the loss.
//
// zb-v: no idle time when F = Bi = W and steps meet nobody, with the activations of 1F1B. Source:
// Qi et al., ICLR 2024 and "Pipeline Parallelism with Controllable Memory", NeurIPS 2024.
// dualpipe-v: forwards of one chunk beside backwards of the other, so that a backend which can
// overlaps one's messages with the other's products. Source: DeepSeek-AI, DualPipe (2024), "cut in
// half" by Qi et al.
#include <algorithm>
#include <deque>

#include "parallel/pipeline/schedule/builders.h"
#include "parallel/pipeline/schedule/program.h"
#include "src/core/error.h"

namespace espalier::parallel {
namespace {

/// A rank's two stages on a vee, and what builders add to its program.
class VeeProgram {
 public:
  VeeProgram(const Schedule& schedule, int rank)
      : stage_{schedule.stage_of(rank, 0), schedule.stage_of(rank, 1)} {}

  void forward(int chunk) { program_.next(ActionKind::forward, stage_[chunk]); }
  void backward(int chunk) {
    program_.add(ActionKind::backward, stage_[chunk], backwards_[chunk]++);
  }
  void backward_input(int chunk) {
    waiting_.push_back({ActionKind::backward_weight, stage_[chunk], backwards_[chunk]});
    program_.add(ActionKind::backward_input, stage_[chunk], backwards_[chunk]++);
  }
  void forward_and_backward(int ahead, int back) {
    program_.next_paired(stage_[ahead]);
    backward(back);
  }
  /// The oldest weight part that waits.
  void backward_weight() {
    const Action action = waiting_.front();
    waiting_.pop_front();
    program_.add(action.kind, action.stage, action.micro_batch);
  }
  /// The oldest one of a chunk.
  void backward_weight(int chunk) {
    const auto found = std::ranges::find(waiting_, stage_[chunk], &Action::stage);
    program_.add(found->kind, found->stage, found->micro_batch);
    waiting_.erase(found);
  }
  int forwards(int chunk) const { return program_.count(ActionKind::forward, stage_[chunk]); }
  bool waits(int chunk) const {
    return std::ranges::find(waiting_, stage_[chunk], &Action::stage) != waiting_.end();
  }
  std::vector<Action> take() { return program_.take(); }

 private:
  int stage_[2];
  int backwards_[2] = {0, 0};
  Program program_;
  std::deque<Action> waiting_;
};

Schedule vee(std::string name, const ScheduleShape& shape) {
  return {.name = std::move(name),
          .ranks = shape.ranks,
          .chunks = 2,
          .micro_batches = shape.micro_batches,
          .placement = Placement::vee,
          .programs = {}};
}

void repeat(int times, const auto& body) {
  for (int i = 0; i < times; ++i) {
    body(i);
  }
}

/// Fewer micro-batches than fill the pipeline: those beyond are left out.
std::vector<Action> only_first(std::vector<Action> program, int micro_batches) {
  std::erase_if(program,
                [micro_batches](const Action& a) { return a.micro_batch >= micro_batches; });
  return program;
}

std::vector<Action> zero_bubble_program(const Schedule& schedule, int rank) {
  const int ranks = schedule.ranks;
  const int filled = std::max(2 * ranks - 1, schedule.micro_batches);
  VeeProgram program(schedule, rank);
  auto whole_backward = [&program](int chunk) {
    program.backward_input(chunk);
    program.backward_weight();
  };
  repeat(2 * (ranks - rank) - 1, [&](int) { program.forward(0); });
  repeat(rank, [&](int) {
    program.forward(1);
    program.forward(0);
  });
  repeat(ranks - rank, [&](int) {
    program.forward(1);
    whole_backward(1);
  });
  while (program.forwards(1) < program.forwards(0) || program.forwards(0) < filled) {
    if (program.forwards(0) < filled) {
      program.forward(0);
    }
    whole_backward(0);
    program.forward(1);
    whole_backward(1);
  }
  repeat(rank, [&](int) {
    program.backward_input(0);
    program.backward_input(1);
  });
  repeat(ranks - rank, [&](int) {
    program.backward_input(0);
    program.backward_weight(0);
  });
  for (const int chunk : {1, 0}) {
    while (program.waits(chunk)) {
      program.backward_weight(chunk);
    }
  }
  return only_first(program.take(), schedule.micro_batches);
}

std::vector<Action> dualpipe_program(const Schedule& schedule, int rank) {
  const int after = schedule.ranks - rank - 1;
  VeeProgram program(schedule, rank);
  repeat(2 * after, [&](int) { program.forward(0); });
  repeat(rank + 1, [&](int) {
    program.forward(0);
    program.forward(1);
  });
  repeat(after, [&](int) {
    program.backward_input(1);
    program.backward_weight();
    program.forward(1);
  });
  repeat(schedule.micro_batches - 2 * schedule.ranks + rank + 1, [&](int i) {
    if (i == 0 && after == 0) {
      program.forward(0);  // the rank of the turn has nothing to overlap yet
      program.backward(1);
    } else {
      program.forward_and_backward(0, 1);
    }
    program.forward_and_backward(1, 0);
  });
  repeat(after, [&](int) {
    program.backward(1);
    program.forward_and_backward(1, 0);
  });
  // From the middle on, weight parts wait, to fill the end.
  auto drain = [&](int chunk, bool put_off) {
    put_off ? program.backward_input(chunk) : program.backward(chunk);
  };
  repeat(rank + 1, [&](int i) {
    const int half = (rank + 1) / 2;
    drain(1, i > half || (i == half && rank % 2 == 1));
    drain(0, i >= half);
  });
  repeat(after, [&](int) {
    program.backward_weight();
    program.backward_input(0);
  });
  repeat(rank + 1, [&](int) { program.backward_weight(); });
  return program.take();
}

}  // namespace

Schedule zero_bubble_v(const ScheduleShape& shape) {
  Schedule schedule = vee("zb-v", shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedule.programs.push_back(zero_bubble_program(schedule, rank));
  }
  return complete(std::move(schedule));
}

Schedule dualpipe_v(const ScheduleShape& shape) {
  check(
      shape.micro_batches >= 2 * shape.ranks,
      "schedule dualpipe-v fills {0} pipeline ranks with at least {1} micro-batches, and there are "
      "{2}: use {1} or more, or schedule zb-v",
      shape.ranks, 2 * shape.ranks, shape.micro_batches);
  Schedule schedule = vee("dualpipe-v", shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedule.programs.push_back(dualpipe_program(schedule, rank));
  }
  return complete(std::move(schedule));
}

}  // namespace espalier::parallel
