#include "tests/simulation/world.h"

#include <fmt/ranges.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <thread>
#include <tuple>

#include "src/core/rng.h"
#include "src/core/trace.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/world_state.h"

namespace espalier::simulation {
namespace {

using parallel::Communicator;
using parallel::Membership;
using parallel::PeerLost;

constexpr size_t kRecent = 80;
constexpr std::chrono::seconds kRealHang{120};  ///< a rank that loops without the transport

constexpr std::array<std::string_view, kFaultKinds> kFaultNames{
    "delay",     "cut",        "stall",     "suspend", "kill",       "close",
    "stop",      "drop",       "duplicate", "flip",    "slow_write", "full_disk",
    "bad_write", "kill_write", "slow_read", "bad_read"};

/// Texts of EventKind.
constexpr std::array<std::string_view, 9> kEventTexts{
    "sends to",           "receives from", "tests", "looks at its peers", "writes", "gets from",
    "loses a message of", "fault",         "ends"};

/// Ends the thread of a rank that a fault kills, or of a hanging world. Nothing else catches them.
struct Killed {};
struct Hung {};

/// The rank that a thread runs.
struct Place {
  World* world = nullptr;
  int rank = 0;
};
thread_local Place t_place;

/// One rank runs at a time: on one core the next one begins at once, while another core would have
/// to wake up (2.3 times the time of a run).
void stay_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (core >= 0) {
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof cores, &cores);  // in vain: slower
  }
}

class RankClock final : public Clock {
 public:
  explicit RankClock(World& world) : world_(world) {}
  double seconds() override { return world_.now(); }

 private:
  World& world_;
};

}  // namespace

void World::record(EventKind kind, int rank, int peer, uint64_t detail) {
  log_ = mix(log_, std::bit_cast<uint64_t>(now_));
  log_ = mix(log_, (static_cast<uint64_t>(kind) << 16U) + (static_cast<uint64_t>(rank) << 8U) +
                       static_cast<uint64_t>(peer + 1));
  log_ = mix(log_, detail);
  recent_.push_back({now_, kind, rank, peer, detail});
  if (recent_.size() > kRecent) {
    recent_.pop_front();
  }
}

/// A point at which the turn may pass to another rank.
void World::call(int rank, EventKind kind, int peer, uint64_t detail) {
  Rank& me = ranks_[rank];
  const bool unwinding = std::uncaught_exceptions() > 0;
  if (unwinding) {
    return;  // destructors after an error: they must not throw, and wait for nothing
  }
  if (me.dead) {
    throw Killed{};
  }
  now_ += kCallSeconds;
  ++me.counts.calls;
  record(kind, rank, peer, detail);
  if (++calls_ > options_.most_calls) {
    hang();
  }
  if (hung_) {
    throw Hung{};
  }
  deliver();
  check_faults(rank);
  if (draw_.once_in(turn_odds_)) {
    pass_turn(rank);
  }
}

void World::check_faults(int rank) {
  for (size_t i = 0; i < happened_.size(); ++i) {
    const Fault& fault = options_.faults[i];
    if (target_of(fault.kind) == Target::call && !happened_[i] && fault.rank == rank &&
        ranks_[rank].counts.calls >= fault.at) {
      happened_[i] = true;
      happen(fault);
    }
  }
}

void World::note_fault(const Fault& fault, double end) {
  record(EventKind::fault, fault.rank, -1, static_cast<uint64_t>(fault.kind));
  fault_ranks_.push_back(fault.rank);
  faults_.push_back(fmt::format("{:.6f} {}", now_, describe(fault)));
  fault_end_ = std::max(fault_end_, end);
}

void World::happen(const Fault& fault) {
  Rank& me = ranks_[fault.rank];
  const bool passes = fault.kind == FaultKind::stall || fault.kind == FaultKind::suspend;
  note_fault(fault, now_ + (passes ? fault.seconds : 0));
  switch (fault.kind) {
    case FaultKind::stall:
      sleep(fault.rank, now_ + fault.seconds, false);
      break;
    case FaultKind::suspend:
      now_ += fault.seconds;
      break;
    case FaultKind::stop:
      me.stop = true;
      break;
    default:  // kill, close
      me.dead = true;
      if (fault.kind == FaultKind::close) {
        tell_gone(fault.rank);
      }
      throw Killed{};
  }
}

void World::at(double time, std::function<void()> action) {
  later_.push({time, order_++, std::move(action)});
}

void World::deliver() {
  while (!later_.empty() && later_.top().time <= now_) {
    const auto action = later_.top().action;
    later_.pop();
    action();
  }
}

void World::begin_busy(int rank, double timeout) {
  Rank& me = ranks_[rank];
  if (me.busy++ == 0) {
    me.busy_interval = timeout / 4;
    me.next_life = now_ + me.busy_interval;
  }
}

int World::disk(int rank, Target target, bool fills) {
  Rank& me = ranks_[rank];
  if (me.dead) {
    return EIO;  // a dead process changes nothing more
  }
  if (hung_ || std::uncaught_exceptions() > 0) {
    return 0;
  }
  const bool writes = target == Target::write;
  const int64_t number = ++(writes ? me.counts.writes : me.counts.reads);
  if (me.busy == 0 && options_.ranks > 1) {  // a slow disk would lose the rank
    violations_.push_back(fmt::format("rank {} {} outside of a Busy ({} {})", rank,
                                      writes ? "changes a file" : "reads a file",
                                      writes ? "write" : "read", number));
  }
  // Reads are many: they take time only where the options say so.
  double seconds = options_.disk_seconds;
  if (writes) {
    record(EventKind::write, rank);
    seconds += kCallSeconds * static_cast<double>(draw_.between(1, 99));
  }
  int error = 0;
  for (size_t i = 0; i < happened_.size() && error == 0; ++i) {
    const Fault& fault = options_.faults[i];
    if (target_of(fault.kind) != target || happened_[i] || fault.rank != rank ||
        number < fault.at || (fault.kind == FaultKind::full_disk && !fills)) {
      continue;
    }
    happened_[i] = true;
    note_fault(fault, now_ + fault.seconds);
    me.dead = fault.kind == FaultKind::kill_write;
    const bool slow = fault.kind == FaultKind::slow_write || fault.kind == FaultKind::slow_read;
    seconds += slow ? fault.seconds : 0;
    error = slow ? 0 : fault.kind == FaultKind::full_disk ? ENOSPC : EIO;
  }
  const double end = now_ + seconds;
  while (error == 0 && now_ < end && !hung_) {
    sleep(rank, me.busy > 0 ? std::min(end, me.next_life) : end, false);
    if (me.busy > 0 && now_ >= me.next_life) {
      show_life(rank);
      me.next_life = now_ + me.busy_interval;
    }
  }
  return error;
}

bool World::finds_file(int rank, const std::string& path, bool creates) {
  const int machine = machine_of(rank);
  if (machine == 0 || options_.local_folder.empty() || !path.starts_with(options_.local_folder)) {
    return true;
  }
  if (creates) {
    files_.emplace(machine, path);
  }
  return files_.contains({machine, path});
}

void World::sleep(int rank, double until, bool wakes) {
  Rank& me = ranks_[rank];
  if (wakes && std::exchange(me.event, false)) {
    until = now_;  // an event since the last sleep
  }
  me.state = State::sleeping;
  me.until = until;
  me.wakes = wakes;
  pass_turn(rank);
}

void World::pass_turn(int rank) {
  const int next = pick();
  if (next != rank) {
    give_turn(next);
    ranks_[rank].turn.await();
  }
}

void World::give_turn(int rank) { ranks_[rank].turn.give(); }

/// The rank that runs next; ranks are left that have not ended.
int World::pick() {
  for (;;) {
    std::array<int, 64> ready{};
    size_t count = 0;
    double next = later_.empty() ? std::numeric_limits<double>::infinity() : later_.top().time;
    for (int r = 0; r < options_.ranks; ++r) {
      Rank& rank = ranks_[r];
      if (rank.state == State::sleeping &&
          (rank.until <= now_ || (rank.wakes && rank.event) || hung_)) {
        rank.state = State::ready;
      }
      if (rank.state == State::ready) {
        ready[count++] = r;
      } else if (rank.state == State::sleeping) {
        next = std::min(next, rank.until);
      }
    }
    if (count > 0) {
      const int chosen = ready[draw_.between(0, static_cast<int64_t>(count) - 1)];
      ranks_[chosen].event = ranks_[chosen].event && !ranks_[chosen].wakes;
      ranks_[chosen].wakes = false;
      return chosen;
    }
    now_ = std::max(now_, next);
    if (now_ > options_.most_seconds) {
      hang();
    }
    deliver();
  }
}

/// Notes once what each rank waits for; all ranks then end.
void World::hang() {
  if (std::exchange(hung_, true)) {
    return;
  }
  for (int r = 0; r < options_.ranks; ++r) {
    const Rank& rank = ranks_[r];
    std::string text = fmt::format("rank {}: {}", r,
                                   rank.state == State::ended      ? name_of(rank.ending.kind)
                                   : rank.state == State::sleeping ? "waits"
                                                                   : "runs");
    for (const auto& [key, channel] : rank.channels) {
      if (!channel.receives.empty()) {
        text += fmt::format(", {} receives from rank {} (communicator {}, kind {}, tag {})",
                            channel.receives.size(), std::get<1>(key), std::get<0>(key),
                            std::get<2>(key), std::get<3>(key));
      }
      if (!channel.messages.empty()) {
        text += fmt::format(
            ", {} messages of rank {} that it did not receive (communicator {}, "
            "kind {}, tag {})",
            channel.messages.size(), std::get<1>(key), std::get<0>(key), std::get<2>(key),
            std::get<3>(key));
      }
    }
    waits_.push_back(std::move(text));
  }
}

void World::run(int rank, const std::function<void(Communicator&)>& body) {
  Rank& me = ranks_[rank];
  me.turn.await();
  RankClock clock(*this);
  Clock::install(&clock);
  t_place = {this, rank};
  Ending ending;
  try {
    Membership members{.rank = rank, .world = {}, .node = {}};
    for (int r = 0; r < options_.ranks; ++r) {
      members.world.push_back(r);
      members.node.push_back(machine_of(r));
    }
    const auto comm = make_communicator(*this, std::move(members));
    try {
      body(*comm);
    } catch (const Failure& failure) {
      if (me.dead) {
        throw Killed{};
      }
      const auto* lost = dynamic_cast<const PeerLost*>(&failure);
      ending = {.kind = Ending::Kind::failure,
                .message = failure.what(),
                .lost = lost != nullptr ? lost->ranks() : std::vector<int>(),
                .retryable = failure.retryable()};
      comm->poison(failure);
    }
  } catch (const Killed&) {
    ending.kind = Ending::Kind::killed;
  } catch (const Hung&) {
    ending.kind = Ending::Kind::hung;
  } catch (const std::exception& error) {
    ending = {.kind = me.dead ? Ending::Kind::killed : Ending::Kind::bug, .message = error.what()};
  }
  t_place = {};
  Clock::install(nullptr);
  ending.time = now_;
  me.ending = std::move(ending);
  me.state = State::ended;
  record(EventKind::end, rank, -1, static_cast<uint64_t>(me.ending.kind));
  if (!me.dead) {
    tell_gone(rank);
  }
  if (std::ranges::all_of(ranks_, [](const Rank& r) { return r.state == State::ended; })) {
    const std::scoped_lock lock(mutex_);
    all_ended_ = true;
    changed_.notify_one();
  } else {
    give_turn(pick());
  }
}

/// Real time passes only while a rank computes: a rank that neither ends nor communicates for long
/// ends the program.
void World::wait() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kRealHang, [this] { return all_ended_; })) {
    fmt::print(stderr,
               "a rank of simulation {} hangs outside of the transport, after {} calls:\n{}\n",
               options_.seed, calls_, fmt::join(faults_, "\n"));
    std::abort();
  }
}

Report World::report() {
  Report report{.log = log_,
                .end = now_,
                .fault_end = fault_end_,
                .faults = std::move(faults_),
                .fault_ranks = std::move(fault_ranks_),
                .violations = std::move(violations_),
                .waits = std::move(waits_)};
  for (Rank& rank : ranks_) {
    report.endings.push_back(std::move(rank.ending));
    report.counts.push_back(rank.counts);
    report.start.push_back(rank.start);
  }
  for (const Event& event : recent_) {
    report.recent.push_back(fmt::format("{:.6f} rank {} {}{}", event.time, event.rank,
                                        kEventTexts.at(static_cast<size_t>(event.kind)),
                                        event.peer < 0 ? "" : fmt::format(" {}", event.peer)));
  }
  return report;
}

std::string_view name_of(FaultKind kind) { return kFaultNames.at(static_cast<size_t>(kind)); }

std::string_view name_of(Ending::Kind kind) {
  constexpr std::array<std::string_view, 5> kNames{"returned", "failed", "killed", "bug", "hung"};
  return kNames.at(static_cast<size_t>(kind));
}

Target target_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::delay:
    case FaultKind::cut:
    case FaultKind::drop:
    case FaultKind::duplicate:
    case FaultKind::flip:
      return Target::send;
    case FaultKind::slow_write:
    case FaultKind::full_disk:
    case FaultKind::bad_write:
    case FaultKind::kill_write:
      return Target::write;
    case FaultKind::slow_read:
    case FaultKind::bad_read:
      return Target::read;
    default:
      return Target::call;
  }
}

int64_t count_of(const Counts& counts, Target target) {
  switch (target) {
    case Target::send:
      return counts.sends;
    case Target::write:
      return counts.writes;
    case Target::read:
      return counts.reads;
    default:
      return counts.calls;
  }
}

std::string describe(const Fault& fault) {
  constexpr std::array<std::string_view, 4> kTargets{"call", "send", "write", "read"};
  return fmt::format("{} of rank {} at {} {}, {:g} s", name_of(fault.kind), fault.rank,
                     kTargets.at(static_cast<size_t>(target_of(fault.kind))), fault.at,
                     fault.seconds);
}

bool finds_file(const std::filesystem::path& path, bool creates) {
  return t_place.world == nullptr || t_place.world->finds_file(t_place.rank, path, creates);
}

Report simulate(const Options& options, const std::function<void(Communicator&)>& body) {
  World world(options);
  SimulatedDisk disk;
  const io::FileSystemScope scope(disk);
  const int core = sched_getcpu();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < options.ranks; ++rank) {
      threads.emplace_back([&world, &body, rank, core] {
        stay_on(core);
        world.run(rank, body);
      });
    }
    world.start();
    world.wait();
  }
  return world.report();
}

bool stop_requested() {
  return t_place.world != nullptr && t_place.world->stop_requested(t_place.rank);
}

void end_of_start() {
  if (t_place.world != nullptr) {
    t_place.world->end_of_start(t_place.rank);
  }
}

int touch_disk(Target target, bool fills) {
  return t_place.world == nullptr ? 0 : t_place.world->disk(t_place.rank, target, fills);
}

}  // namespace espalier::simulation
