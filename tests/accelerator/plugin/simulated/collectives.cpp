// A process group that behaves as NCCL's does, and a module through which Python makes one.
#include "device.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>

namespace simulated {
namespace {
using at::Tensor;
using c10d::Backend;
using c10d::Work;
using Tensors = std::vector<Tensor>;

c10::Stream stream_of(c10::DeviceIndex d) { return c10::Stream(c10::Stream::UNSAFE, c10::Device(SIM, d), 1 << 20); }

// What a collective returns at once. wait() has the current stream wait; nothing waits on the host.
struct Pending final : Work {
  Pending(std::shared_ptr<Ticket> t, c10::DeviceIndex d, Tensors outputs) : ticket(std::move(t)), device(d), outputs(std::move(outputs)) {
    c10::StreamGuard guard(stream_of(d));
    future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{{SIM, d}});
    future->markCompleted(c10::IValue(this->outputs));
  }
  bool isCompleted() override { return ticket->done; }
  bool isSuccess() const override { return ticket->done; }
  void synchronize() override { wait_for(current_stream(device), {ticket}); }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  std::vector<Tensor> result() override { return outputs; }
  std::shared_ptr<Ticket> ticket;
  c10::DeviceIndex device;
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
};

// One device's collectives, in their order, on a thread of their own.
struct Communicator {
  Communicator(c10::intrusive_ptr<Backend> way, int rank, int size, c10::DeviceIndex d) : way(std::move(way)), rank(rank), size(size) {
    refuse_duplicates(d);
    std::thread([this] { run(); }).detach();  // it ends with its process, as NCCL's do
  }

  void refuse_duplicates(c10::DeviceIndex d) {
    auto mine = at::zeros({64}, at::kByte);
    auto name = identity(d);
    std::memcpy(mine.data_ptr(), name.data(), std::min<size_t>(name.size(), 64));
    auto all = gathered(mine);
    for (int a = 0; a < size; ++a)
      TORCH_CHECK(a == rank || !all[a].equal(mine), "simulated error: Duplicate device detected: rank ", rank, " and rank ", a, " both on ", name);
  }

  Tensors gathered(const Tensor& mine) {
    std::vector<Tensors> all(1);
    for (int r = 0; r < size; ++r) all[0].push_back(at::empty_like(mine));
    Tensors given{mine};
    way->allgather(all, given)->wait();
    return all[0];
  }

  // NCCL would hang, or add up what does not belong together
  void agree(const std::string& what) {
    auto mine = at::zeros({1}, at::kLong);
    mine.fill_(static_cast<int64_t>(std::hash<std::string>()(what) >> 2));
    for (const auto& theirs : gathered(mine))
      if (!theirs.equal(mine)) {
        // in one piece: other ranks say theirs at the same time
        std::cerr << "simulated error: rank " + std::to_string(rank) + " is in " + what + ", another rank is not\n" << std::flush;
        std::abort();
      }
  }

  void run() {
    const char* lag = std::getenv("SIMULATED_LAG");
    while (true) {
      std::unique_lock<std::mutex> held(lock);
      came.wait(held, [this] { return !jobs.empty(); });
      auto job = std::move(jobs.front());
      jobs.pop_front();
      held.unlock();
      wait_on_the_host(job.after);
      if (lag) std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(lag)));
      try {
        agree(job.what);
        job.act();
      } catch (const std::exception&) {
        return;  // a peer is lost: what waits for it waits until the launcher ends it
      }
      job.ticket->done = true;
    }
  }

  struct Job {
    std::string what;
    Tickets after;
    std::function<void()> act;
    std::shared_ptr<Ticket> ticket;
  };
  void start(Job job) {
    std::lock_guard<std::mutex> held(lock);
    jobs.push_back(std::move(job));
    came.notify_one();
  }

  c10::intrusive_ptr<Backend> way;
  const int rank, size;
  std::mutex lock;
  std::condition_variable came;
  std::deque<Job> jobs;
};

std::atomic<int>& connected() {
  static std::atomic<int> devices{0};
  return devices;
}

std::mutex log_lock;
std::vector<std::string>& log() {
  static std::vector<std::string> made;
  return made;
}

struct Collectives final : Backend {
  Collectives(std::vector<c10::intrusive_ptr<Backend>> ways, int rank, int size) : Backend(rank, size), ways(std::move(ways)) {}

  const std::string getBackendName() const override { return "simccl"; }

  void check(const Tensor& x) {
    TORCH_CHECK(x.device().type() == SIM, "Tensors must be on the accelerator and dense, but one is on ", x.device());
    TORCH_CHECK(x.layout() == at::kStrided && x.is_non_overlapping_and_dense(), "Tensors must be contiguous");
    TORCH_CHECK(!x.is_complex(), "simccl has no complex numbers");
  }

  // told of its only device it connects at once, as NCCL does
  bool supportsSplitting() const override { return true; }
  void eagerConnectSingleDevice(at::Device device) override { at(device.index()); }

  c10::intrusive_ptr<Work> start(const std::string& name, const Tensors& tensors, Tensors outputs, std::function<void(Backend&)> act) {
    for (const auto& x : tensors) check(x);
    const auto d = tensors[0].device().index();
    for (const auto& x : tensors) TORCH_CHECK(x.device().index() == d, "Tensors must be on one device");
    auto& mine = at(d);
    std::ostringstream what;
    what << name << " of " << tensors[0].scalar_type() << tensors[0].sizes();
    {
      std::lock_guard<std::mutex> held(log_lock);
      log().push_back(what.str() + " on " + std::to_string(d));
    }
    auto ticket = std::make_shared<Ticket>();
    auto after = waited_for(current_stream(d));
    wait_for(stream_of(d), {ticket});
    auto pending = c10::make_intrusive<Pending>(ticket, d, std::move(outputs));
    mine.start({what.str(), after, [&mine, act, tensors] { act(*mine.way); }, ticket});
    return pending;
  }

  Communicator& at(c10::DeviceIndex d) {
    std::lock_guard<std::mutex> held(lock);
    auto& made = communicators[d];
    if (!made) ++connected();
    if (!made) made = new Communicator(ways.at(count++), getRank(), getSize(), d);  // ranks make theirs in one order
    return *made;
  }

  static Tensor flat(const Tensor& x) { return host(x).as_strided({x.numel()}, {1}); }

  c10::intrusive_ptr<Work> allreduce(Tensors& xs, const c10d::AllreduceOptions& options) override {
    return start("allreduce", xs, xs, [xs, options](Backend& way) {
      Tensors given{flat(xs[0])};
      way.allreduce(given, options)->wait();
    });
  }
  c10::intrusive_ptr<Work> broadcast(Tensors& xs, const c10d::BroadcastOptions& options) override {
    return start("broadcast", xs, xs, [xs, options](Backend& way) {
      Tensors given{flat(xs[0])};
      way.broadcast(given, options)->wait();
    });
  }
  c10::intrusive_ptr<Work> allgather(std::vector<Tensors>& outs, Tensors& ins, const c10d::AllgatherOptions&) override {
    auto into = outs[0];
    for (const auto& x : into) check(x);
    return start("allgather", ins, into, [this, into, ins](Backend& way) {
      std::vector<Tensors> all(1);
      for (size_t k = 0; k < into.size(); ++k) all[0].push_back(at::empty({ins[0].numel()}, ins[0].options().device(at::kCPU)));
      Tensors given{flat(ins[0])};
      way.allgather(all, given)->wait();
      for (size_t k = 0; k < into.size(); ++k) flat(into[k]).copy_(all[0][k]);
    });
  }
  c10::intrusive_ptr<Work> _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions&) override {
    check(out);
    return start("allgather", {in}, {out}, [this, out, in](Backend& way) {
      std::vector<Tensors> all(1);
      for (int r = 0; r < getSize(); ++r) all[0].push_back(at::empty({in.numel()}, in.options().device(at::kCPU)));
      Tensors given{flat(in)};
      way.allgather(all, given)->wait();
      flat(out).copy_(at::cat(all[0]));
    });
  }
  c10::intrusive_ptr<Work> _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions&) override {
    check(out);
    return start("reduce_scatter", {in}, {out}, [this, out, in](Backend& way) {
      Tensors sums{flat(in).clone()};
      way.allreduce(sums)->wait();
      flat(out).copy_(sums[0].chunk(getSize())[getRank()]);
    });
  }
  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions&) override {
    Tensors xs{at::zeros({1}, at::TensorOptions().device(c10::Device(SIM, 0)))};
    auto work = allreduce(xs, {});
    wait_on_the_host(waited_for(stream_of(0)));
    return work;
  }

  std::vector<c10::intrusive_ptr<Backend>> ways;
  std::mutex lock;
  size_t count = 0;
  std::map<c10::DeviceIndex, Communicator*> communicators;
};

PYBIND11_MODULE(_simulated, m) {
  m.def("create", [](std::vector<c10::intrusive_ptr<Backend>> ways, int rank, int size) -> c10::intrusive_ptr<Backend> {
    return c10::make_intrusive<Collectives>(std::move(ways), rank, size);
  });
  m.def("begin", &begin);
  m.def("is_used", &is_used);
  m.def("is_asked", &is_asked);
  m.def("is_in_bad_fork", &is_in_bad_fork);
  m.def("seed_all", &seed_all);
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("default_generator", [](int d) { return default_generator(static_cast<c10::DeviceIndex>(d)); });
  m.def("identity", [](int d) { return identity(static_cast<c10::DeviceIndex>(d)); });
  m.def("counts", [] {
    auto& c = counts();
    return std::map<std::string, int64_t>{
        {"reads", c.reads}, {"to_host", c.to_host}, {"to_device", c.to_device}, {"waits", c.waits}, {"kernels", c.kernels}};
  });
  m.def("memory", [] {
    auto& m = memory();
    return std::map<std::string, int64_t>{{"held", m.held}, {"peak", m.peak}, {"pinned", m.pinned}};
  });
  m.def("reset_peak", [] { memory().peak = memory().held.load(); });
  m.def("connected", [] { return connected().load(); });
  m.def("collectives", [] {
    std::lock_guard<std::mutex> held(log_lock);
    return log();
  });
  m.def("waiting_streams", [] { return waiting_streams(); });
  m.def("recorded_streams", [] { return recorded_streams(); });
}
}  // namespace
}  // namespace simulated
