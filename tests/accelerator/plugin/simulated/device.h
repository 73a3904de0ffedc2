// An accelerator that is not there: its memory is the host's, its kernels are the CPU's, its streams are real.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace simulated {

constexpr auto SIM = c10::DeviceType::PrivateUse1;

// What a collective that runs on a thread of its own has not finished yet.
struct Ticket {
  std::atomic<bool> done{false};
};
using Tickets = std::vector<std::shared_ptr<Ticket>>;

// A stream is what it waits for. Kernels run on the host's thread once their stream waits for nothing: so the host
// waits at the next kernel, as on a GPU whose queue is full, and never in a collective or in Work::wait().
Tickets waited_for(const c10::Stream& stream);
void wait_for(const c10::Stream& stream, const Tickets& tickets);
void wait_on_the_host(const Tickets& tickets);
c10::Stream current_stream(c10::DeviceIndex device);
void begin_kernel(c10::DeviceIndex device);

c10::DeviceIndex device_count();  // what the driver showed when it was first asked: no variable changes it then
void begin();
bool is_used();
bool is_asked();
bool is_in_bad_fork();
void seed_all(uint64_t seed);
std::string identity(c10::DeviceIndex device);  // as a GPU's UUID
at::Generator default_generator(c10::DeviceIndex device);
at::Tensor host(const at::Tensor& x);           // the same memory, as the CPU's kernels want it

// reads: the host asks for values or for a shape that depends on them; waits: it waits for a stream, event or device
struct Counts {
  std::atomic<int64_t> reads{0}, to_host{0}, to_device{0}, waits{0}, kernels{0};
};
// bytes of the device and of pinned memory, now and at most
struct Memory {
  std::atomic<int64_t> held{0}, peak{0}, pinned{0};
};
Memory& memory();
Counts& counts();
std::vector<std::pair<uintptr_t, int64_t>>& recorded_streams();
std::vector<int64_t>& waiting_streams();  // the streams that were told to wait for an event

}  // namespace simulated
