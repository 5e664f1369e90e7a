#pragma once
// One rank of a plan: it knows its members and sends nothing. For code that allocates for a number
// of ranks (Reduction::reserve).
#include "parallel/transport/communicator.h"

namespace espalier::parallel {

class PlannedCommunicator final : public Communicator {
 public:
  explicit PlannedCommunicator(Membership members) : Communicator(std::move(members)) {}

  std::string_view name() const override { return "planned"; }
  std::unique_ptr<Communicator> split(int /*color*/, int /*key*/) override {
    fail("a planned rank does not know the colors of the others");
  }
  std::unique_ptr<Communicator> split_by(std::span<const int> colors) override {
    Membership part;
    for (int r = 0; r < size(); ++r) {
      if (colors[r] == colors[rank()]) {
        part.rank = r == rank() ? static_cast<int>(part.world.size()) : part.rank;
        part.world.push_back(members().world[r]);
        part.node.push_back(members().node[r]);
      }
    }
    return std::make_unique<PlannedCommunicator>(std::move(part));
  }
  void progress() override {}
  void show_life() noexcept override {}
  double last_life() const override { return 0; }
  void poison(const Failure& /*why*/) noexcept override {}
  void abort(int /*code*/) noexcept override {}

 private:
  std::unique_ptr<Operation> start_send(int, Tag, std::span<const std::byte>,
                                        const Trailer&) override {
    return nullptr;
  }
  std::unique_ptr<Operation> start_receive(int, Tag, std::span<std::byte>) override {
    return nullptr;
  }
  void idle(int /*round*/) override {}
};

}  // namespace espalier::parallel
