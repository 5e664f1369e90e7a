// For systems with <ucontext.h>: slower, since it also saves the signal mask.
#include <ucontext.h>

#include <vector>

#include "tests/simt/fiber.h"
#include "tests/simt/sanitizer.h"

namespace espalier::simt {

struct Context::State {
  ucontext_t context;
  StackRecord record;
  std::vector<std::byte> stack;
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
};

namespace {

thread_local StackRecord* left = nullptr;
thread_local StackRecord* entered = nullptr;
thread_local void (*first_entry)(void*) = nullptr;
thread_local void* first_argument = nullptr;

void begin() {
  entered->arrive(left);
  first_entry(first_argument);
  __builtin_trap();
}

}  // namespace

Context::Context() : state_(std::make_unique<State>()) {}

Context::Context(void (*entry)(void*), void* argument, size_t stack_bytes) : Context() {
  State& s = *state_;
  s.stack.resize(stack_bytes);
  s.record.bottom = s.stack.data();
  s.record.bytes = stack_bytes;
  s.entry = entry;
  s.argument = argument;
  getcontext(&s.context);
  s.context.uc_stack.ss_sp = s.stack.data();
  s.context.uc_stack.ss_size = stack_bytes;
  s.context.uc_link = nullptr;
  makecontext(&s.context, &begin, 0);
}

Context::~Context() = default;

void Context::switch_to(Context& from, Context& to) {
  State& old = *from.state_;
  State& next = *to.state_;
  left = &old.record;
  entered = &next.record;
  first_entry = next.entry;
  first_argument = next.argument;
  old.record.leave_for(next.record);
  swapcontext(&old.context, &next.context);
  old.record.arrive(left);
}

}  // namespace espalier::simt
