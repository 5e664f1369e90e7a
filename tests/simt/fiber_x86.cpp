// x86-64, System V: a switch saves the six callee-saved registers and the stack pointer.
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/simt/fiber.h"
#include "tests/simt/sanitizer.h"

extern "C" void espalier_simt_switch(void** save, void* load);

__asm__(R"(
.text
.globl espalier_simt_switch
.type espalier_simt_switch, @function
espalier_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size espalier_simt_switch, .-espalier_simt_switch
)");

namespace espalier::simt {

struct Context::State {
  void* top = nullptr;  ///< stack pointer while not running
  StackRecord record;
  std::unique_ptr<std::byte[]> stack;
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
};

namespace {

// State that a fiber reads when it begins.
thread_local StackRecord* left = nullptr;
thread_local StackRecord* entered = nullptr;
thread_local void (*first_entry)(void*) = nullptr;
thread_local void* first_argument = nullptr;

[[noreturn]] void begin() {
  entered->arrive(left);
  first_entry(first_argument);
  __builtin_trap();
}

}  // namespace

Context::Context() : state_(std::make_unique<State>()) {}

Context::Context(void (*entry)(void*), void* argument, size_t stack_bytes) : Context() {
  constexpr size_t kSaved = 6;  // registers
  State& s = *state_;
  s.stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
  s.record.bottom = s.stack.get();
  s.record.bytes = stack_bytes;
  s.entry = entry;
  s.argument = argument;
  // At function entry the stack pointer is 8 bytes past a multiple of 16.
  const auto end = reinterpret_cast<uintptr_t>(s.stack.get() + stack_bytes) / 16 * 16;
  auto* top = reinterpret_cast<uintptr_t*>(end) - 2 - kSaved;
  std::memset(top, 0, (kSaved + 2) * sizeof *top);
  top[kSaved] = reinterpret_cast<uintptr_t>(&begin);
  s.top = top;
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
  espalier_simt_switch(&old.top, next.top);
  old.record.arrive(left);
}

}  // namespace espalier::simt
