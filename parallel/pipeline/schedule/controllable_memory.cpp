// Schedules of controllable memory: two stages a rank in V-shaped placement, with separate weight
// gradients. A building block (the actions of one micro-batch at fixed times) repeats every 6
// actions, so that F, Bi and W of both stages fill the period. The time for which a block keeps its
// activations determines the memory:
//
//   v-half   at most p + 2 stages held, half of 1F1B's activations    bubble at F = Bi = W: 1.5 p F
//   v-min    at most 2 (p + 4) / 3,     a third                                             2 p F
//
// F is the forward of a rank's two stages. The block defines the order; weight gradients fill a
// rank's waiting time, or run when the memory bound is reached. Source: Qi et al., "Pipeline
// Parallelism with Controllable Memory", NeurIPS 2024 (arXiv 2405.15362), sections 3 and 4.
#include <algorithm>
#include <array>

#include "parallel/pipeline/schedule/builders.h"

namespace espalier::parallel {
namespace {

constexpr int kPeriod = 6;

/// Start times of a rank's actions of one micro-batch: forwards of chunk 0 and 1, backwards (input)
/// of chunk 1 and 0. Blocks that are kPeriod apart never collide.
using Block = std::array<int, 4>;

Block half_block(int p, int rank) {
  const int gap = p % 2 == 0 ? 3 : 0;
  return {2 * rank, 3 * p - rank - 2, 3 * p + gap + 2 * rank - 1, 6 * p + gap - rank - 2};
}

Block third_block(int p, int rank) {
  const int gap = p % 3 == 0 ? 2 : 0;
  return {rank, 2 * p - 1 - rank, 2 * p + gap + rank, 4 * p + gap - rank - 1};
}

struct Pass {
  int begin = 0;
  int chunk = 0;
  bool forward = false;
  int micro_batch = 0;
};

/// The passes of a rank in the order of the repeated blocks.
std::vector<Pass> repeated(const Block& block, int micro_batches) {
  std::vector<Pass> passes;
  for (int i = 0; i < micro_batches; ++i) {
    const int begin = i * kPeriod;
    passes.push_back({begin + block[0], 0, true, i});
    passes.push_back({begin + block[1], 1, true, i});
    passes.push_back({begin + block[2], 1, false, i});
    passes.push_back({begin + block[3], 0, false, i});
  }
  std::ranges::sort(passes, {}, &Pass::begin);
  return passes;
}

/// Runs all ranks in lockstep, one action of unit time each: the next pass if its input has arrived
/// and fewer than `bound` stages are held, else a weight gradient.
Schedule squeezed(std::string_view name, const ScheduleShape& shape, Block (*block)(int, int),
                  int bound) {
  struct Rank {
    VProgram program;
    std::vector<Pass> passes;
    size_t next = 0;
    int held = 0;
  };
  Schedule schedule = v_shaped(name, shape);
  std::vector<Rank> ranks;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    ranks.push_back({.program = VProgram(schedule, rank),
                     .passes = repeated(block(shape.ranks, rank), shape.micro_batches)});
  }
  struct Done {
    int forwards = 0, backwards = 0;
  };
  std::vector<Done> done(static_cast<size_t>(schedule.stages()));  // before this unit of time
  const auto ready = [&](int stage, const Pass& pass) {
    const auto s = static_cast<size_t>(stage);
    if (pass.forward) {
      return s == 0 || done[s - 1].forwards > pass.micro_batch;
    }
    return s + 1 == done.size() ? done[s].forwards > pass.micro_batch
                                : done[s + 1].backwards > pass.micro_batch;
  };
  for (bool acted = true; acted;) {
    acted = false;
    std::vector<Done> after = done;
    for (int number = 0; number < shape.ranks; ++number) {
      Rank& rank = ranks[static_cast<size_t>(number)];
      const Pass* pass = rank.next < rank.passes.size() ? &rank.passes[rank.next] : nullptr;
      const int stage = pass != nullptr ? schedule.stage_of(number, pass->chunk) : 0;
      if (pass != nullptr && ready(stage, *pass) && (!pass->forward || rank.held < bound)) {
        Done& now = after[static_cast<size_t>(stage)];
        ++(pass->forward ? now.forwards : now.backwards);
        pass->forward ? rank.program.forward(pass->chunk)
                      : rank.program.backward_input(pass->chunk);
        rank.held += pass->forward ? 1 : 0;
        ++rank.next;
      } else if (rank.program.weight_due()) {
        rank.program.backward_weight();
        --rank.held;
      } else {
        continue;
      }
      acted = true;
    }
    done = std::move(after);
  }
  for (Rank& rank : ranks) {
    schedule.programs.push_back(rank.program.take());
  }
  return complete(std::move(schedule));
}

Schedule v_half(const ScheduleShape& shape) {
  return squeezed("v-half", shape, half_block, (shape.ranks + 2) / 2 * 2);
}

Schedule v_min(const ScheduleShape& shape) {
  return squeezed("v-min", shape, third_block, (shape.ranks + 4) / 3 * 2);
}

}  // namespace

extern const ScheduleEntry kVHalf{
    .name = "v-half",
    .help = "two stages a rank, there and back, with half the activations of 1f1b",
    .build = v_half,
    .chunks = 2,
};

extern const ScheduleEntry kVMin{
    .name = "v-min",
    .help = "as v-half, with a third of the activations of 1f1b",
    .build = v_min,
    .chunks = 2,
};

}  // namespace espalier::parallel
