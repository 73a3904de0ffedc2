// Memory, streams, events, generators and what torch asks of an accelerator.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <Python.h>
#include <malloc.h>
#include <pthread.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

namespace simulated {

namespace {
constexpr size_t MOST = size_t{1} << 34;  // bytes of a device
thread_local c10::DeviceIndex current = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> streams;
std::mutex lock;
std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Tickets> lanes;

// as CUDA: a question begins the driver, and a fork of a process that has asked can do nothing with it
std::atomic<bool> asked{false}, used{false}, bad_fork{false};
std::optional<uint64_t> chosen;  // a seed, before there are generators
void check_fork() { TORCH_CHECK(!bad_fork, "Cannot re-initialize simulated devices in forked subprocess"); }

// SIMULATED_VISIBLE_DEVICES of the devices that are there, read once as a driver reads it.
const std::vector<std::string>& visible() {
  static const auto found = [] {
    asked = true;
    pthread_atfork(nullptr, nullptr, [] { bad_fork = true; });
    const char* there = std::getenv("SIMULATED_DEVICES");
    const int all = there ? std::atoi(there) : 4;
    std::vector<std::string> names;
    const char* given = std::getenv("SIMULATED_VISIBLE_DEVICES");
    if (!given) {
      for (int k = 0; k < all; ++k) names.push_back(std::to_string(k));
      return names;
    }
    std::stringstream text(given);
    for (std::string name; std::getline(text, name, ',');) {
      if (name.empty() || name.find_first_not_of("0123456789") != std::string::npos || std::stoi(name) >= all) break;
      names.push_back(name);
    }
    return names;
  }();
  return found;
}
std::pair<c10::DeviceIndex, c10::StreamId> lane(const c10::Stream& s) { return {s.device_index(), s.id()}; }
}  // namespace

c10::DeviceIndex device_count() { return static_cast<c10::DeviceIndex>(visible().size()); }
void begin() {
  check_fork();
  visible();
  used = true;
}
bool is_used() { return used && !bad_fork; }
bool is_asked() { return asked; }
bool is_in_bad_fork() { return bad_fork; }
std::string identity(c10::DeviceIndex device) { return "simulated-" + visible().at(device); }

Counts& counts() {
  static Counts made;
  return made;
}
Memory& memory() {
  static Memory made;
  return made;
}
std::vector<std::pair<uintptr_t, int64_t>>& recorded_streams() {
  static std::vector<std::pair<uintptr_t, int64_t>> made;
  return made;
}

std::vector<int64_t>& waiting_streams() {
  static std::vector<int64_t> made;
  return made;
}

Tickets waited_for(const c10::Stream& stream) {
  std::lock_guard<std::mutex> held(lock);
  auto& tickets = lanes[lane(stream)];
  std::erase_if(tickets, [](const auto& t) { return t->done.load(); });
  return tickets;
}

void wait_for(const c10::Stream& stream, const Tickets& tickets) {
  std::lock_guard<std::mutex> held(lock);
  auto& mine = lanes[lane(stream)];
  mine.insert(mine.end(), tickets.begin(), tickets.end());
}

void wait_on_the_host(const Tickets& tickets) {
  if (std::all_of(tickets.begin(), tickets.end(), [](const auto& t) { return t->done.load(); })) return;
  // other threads of Python go on meanwhile; and the processor is busy, as it is while a driver waits
  PyThreadState* state = Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  static const bool spins = std::getenv("SIMULATED_SPINS") != nullptr;
  for (const auto& t : tickets)
    while (!t->done.load())
      if (!spins) std::this_thread::sleep_for(std::chrono::microseconds(20));
  if (state) PyEval_RestoreThread(state);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(SIM, device), streams[device]);
}

void begin_kernel(c10::DeviceIndex device) { wait_on_the_host(waited_for(current_stream(device))); }

at::Tensor host(const at::Tensor& x) {
  if (!x.defined() || x.device().type() != SIM) return x;
  auto made = at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().device(at::kCPU));
  if (x.is_conj()) made._set_conj(true);
  if (x.is_neg()) made._set_neg(true);
  return made;
}

namespace {

struct DeviceMemory final : c10::Allocator {
  static void release(void* p) {
    memory().held -= malloc_usable_size(p);
    std::free(p);
  }
  c10::DataPtr allocate(size_t n) override {
    begin();
    TORCH_CHECK_WITH(OutOfMemoryError, n <= MOST, "simulated out of memory. Tried to allocate ", n, " bytes");
    void* p = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
    if (p) std::memset(p, 0xAB, n);  // as on a GPU: what is there is not zeros
    auto& here = memory();
    here.held += malloc_usable_size(p);
    here.peak = std::max<int64_t>(here.peak, here.held);
    return {p, p, &release, c10::Device(SIM, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};
DeviceMemory device_memory;
REGISTER_ALLOCATOR(SIM, &device_memory)

std::set<const void*>& pinned_pointers() {
  static std::set<const void*> made;
  return made;
}
struct Pinned final : c10::Allocator {
  static void release(void* p) {
    {
      std::lock_guard<std::mutex> held(lock);
      pinned_pointers().erase(p);
    }
    memory().pinned -= malloc_usable_size(p);
    std::free(p);
  }
  c10::DataPtr allocate(size_t n) override {
    void* p = std::aligned_alloc(64, (std::max<size_t>(n, 1) + 63) / 64 * 64);
    memory().pinned += malloc_usable_size(p);
    std::lock_guard<std::mutex> held(lock);
    pinned_pointers().insert(p);
    return {p, p, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};
Pinned pinned;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SIM; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto old = getDevice();
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return {SIM, current}; }
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(d.index() < device_count(), "simulated error: invalid device ordinal");
    if (d.index() >= 0) current = d.index();
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0) current = d.index();
  }
  c10::Stream getStream(c10::Device d) const noexcept override { return current_stream(d.has_index() ? d.index() : current); }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(SIM, d.has_index() ? d.index() : current), 0);
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    static std::atomic<c10::StreamId> made{0};
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(SIM, d.has_index() ? d.index() : current), ++made);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override {
    auto old = current_stream(s.device_index());
    streams[s.device_index()] = s.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  // an event holds what its stream waited for when it was recorded
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Tickets();
    *static_cast<Tickets*>(*event) = waited_for(s);
  }
  void block(void* event, const c10::Stream& s) const override {
    if (!event) return;
    wait_for(s, *static_cast<Tickets*>(event));
    std::lock_guard<std::mutex> held(lock);
    waiting_streams().push_back(s.id());
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    auto& tickets = *static_cast<Tickets*>(event);
    return std::all_of(tickets.begin(), tickets.end(), [](const auto& t) { return t->done.load(); });
  }
  void synchronizeEvent(void* event) const override {
    ++counts().waits;
    if (event) wait_on_the_host(*static_cast<Tickets*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Tickets*>(event); }
  bool queryStream(const c10::Stream& s) const override { return waited_for(s).empty(); }
  void synchronizeStream(const c10::Stream& s) const override {
    ++counts().waits;
    wait_on_the_host(waited_for(s));
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    ++counts().waits;
    Tickets all;
    {
      std::lock_guard<std::mutex> held(lock);
      for (auto& [where, tickets] : lanes)
        if (where.first == (d < 0 ? current : d)) all.insert(all.end(), tickets.begin(), tickets.end());
    }
    wait_on_the_host(all);
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    std::lock_guard<std::mutex> held(lock);
    recorded_streams().emplace_back(reinterpret_cast<uintptr_t>(p.get()), s.id());
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// A generator of the device's own, which draws the numbers of one of the CPU's.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex d)
      : GeneratorImpl({SIM, d}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), inner(at::detail::createCPUGenerator()) {
    inner.seed();  // as CUDA's: nobody's choice until someone seeds
  }
  void set_current_seed(uint64_t s) override { inner.set_current_seed(s); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& s) override { inner.unsafeGetGeneratorImpl()->set_state(s); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto made = new Generator(device_.index());
    made->inner = inner.clone();
    return made;
  }
  at::Generator inner;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  // torch asks these two since 2.7, and finds them in the interface; before, nobody does
  bool isBuilt() const { return true; }
  bool isAvailable() const { return device_count() > 0; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex d) const override { Guard().setDevice({SIM, d}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override { return Guard().exchangeDevice({SIM, d}).index(); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return d < 0 ? current : exchangeDevice(d); }
  bool isPinnedPtr(const void* p) const override {
    std::lock_guard<std::mutex> held(lock);
    return pinned_pointers().count(p) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  at::Device getDeviceFromPtr(void*) const override { return {SIM, current}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex d) const override {
    static std::vector<at::Generator> made = [] {
      std::vector<at::Generator> all;
      for (c10::DeviceIndex k = 0; k < device_count(); ++k) all.push_back(at::make_generator<Generator>(k));
      if (chosen)
        for (auto& g : all) g.set_current_seed(*chosen);
      return all;
    }();
    return made.at(d < 0 ? current : d);
  }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override { return at::make_generator<Generator>(d < 0 ? current : d); }
  void resizePrivateUse1Bytes(const c10::Storage& s, size_t n) const override {
    auto fresh = device_memory.allocate(n);
    if (n && s.nbytes()) std::memcpy(fresh.get(), s.data(), std::min(n, s.nbytes()));
    s.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    s.unsafeGetStorageImpl()->set_nbytes(n);
  }
};
Hooks hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

}  // namespace

at::Generator& of_the_cpu(const at::Generator& g) { return static_cast<Generator*>(g.unsafeGetGeneratorImpl())->inner; }
void seed_all(uint64_t seed) {
  chosen = seed;
  if (used)
    for (c10::DeviceIndex k = 0; k < device_count(); ++k) hooks.getDefaultGenerator(k).unsafeGetGeneratorImpl()->set_current_seed(seed);
}
at::Generator default_generator(c10::DeviceIndex d) { return hooks.getDefaultGenerator(d); }
at::Generator& default_of_the_cpu(c10::DeviceIndex d) { return of_the_cpu(hooks.getDefaultGenerator(d)); }

}  // namespace simulated
