// Copies and reductions among the devices of one process: every byte of every buffer, guards
// included, against plain copies and the plain tree of reference_tree.h. On the host under the
// execution shim, with devices of every kind of link; or on a GPU when compiled by nvcc, with ranks
// as its streams.
//
//   shim_exchange_test [CASE [SEED]]
//
//   direct | staged | mixed | broken   random operations, 1 to 16 ranks, by how ranks reach memory
//   repeated                           the same device several times
//   race                               the short program that ThreadSanitizer watches
//   warm | threads | refused           what allocates, who may call, wrong arguments
#include <thread>

#include "dtypes.h"
#include "local_world.h"
#include "random_values.h"

namespace fastcomm::testing {
namespace {

std::vector<char> slice(const std::vector<char>& bytes, uint64_t at, uint64_t count) {
  return {bytes.begin() + at, bytes.begin() + at + count};
}

/// Issues random operations on a world; LocalWorld compares what they leave behind.
class Issuer {
 public:
  Issuer(LocalWorld& world, uint64_t most) : w_(world), most_(most) {}

  void broadcast() {
    const int root = any_rank();
    std::vector<CopyJob> jobs;
    for (int t = few(); t > 0; --t) {
      const uint64_t bytes = any_size();
      const Buffer& source = w_.add(root, bytes, 1);
      jobs.push_back(CopyJob{root, source.data(), bytes, {}});
      for (int rank = 0; rank < n(); ++rank) {
        if (rank != root) jobs.back().dst[rank] = copy_of(source, rank, bytes).data();
      }
    }
    w_.run(name("broadcast"), [&] { w_.exchange.copy(jobs, w_.streams); });
  }

  void scatter_and_gather() {
    for (const bool gather : {false, true}) {
      const int root = any_rank();
      std::vector<CopyJob> jobs;
      for (int rank = 0; rank < n(); ++rank) {
        const int from = gather ? rank : root, to = gather ? root : rank;
        const uint64_t bytes = any_size();
        const Buffer& source = w_.add(from, bytes, 1);
        jobs.push_back(CopyJob{from, source.data(), bytes, {}});
        const bool in_place = rank == root && random() % 4 == 0;
        jobs.back().dst[to] = in_place ? source.data() : copy_of(source, to, bytes).data();
      }
      w_.run(name(gather ? "gather" : "scatter"), [&] { w_.exchange.copy(jobs, w_.streams); });
    }
  }

  void reduce() {
    const int root = any_rank();
    const ReduceSpec spec = any_spec();
    RankSources inputs(n());
    std::vector<char*> outputs;
    Sizes counts;
    const bool in_place = spec.in == spec.out && random() % 2 == 0;
    for (int t = few(); t > 0; --t) {
      counts.push_back(any_count(spec));
      const std::vector<Buffer*> from = inputs_of(spec, counts.back(), inputs);
      Buffer& to = in_place ? *from[root] : put(root, counts.back(), outputs, size(spec.out));
      if (in_place) outputs.push_back(to.data());
      to.want(reduced(spec, from, 0, counts.back()));
    }
    w_.run(name("reduce", spec),
           [&] { w_.exchange.reduce(inputs, outputs, counts, spec, root, w_.streams); });
  }

  void everything() {
    broadcast();
    reduce();
    scatter_and_gather();
    reduce();
  }

 private:
  int n() const { return w_.size(); }
  uint64_t random() { return w_.random(); }
  int any_rank() { return static_cast<int>(random() % n()); }
  int few() { return static_cast<int>(random() % 4); }
  uint64_t any_size() { return random() % 5 == 0 ? 0 : random() % (1 + random() % most_); }
  uint64_t any_count(const ReduceSpec& spec) { return any_size() / size(spec.in); }
  static size_t size(DType dtype) { return dtype_size(dtype); }
  Buffer& copy_of(const Buffer& source, int rank, uint64_t bytes) {
    Buffer& copy = w_.add(rank, bytes, 1);
    copy.want(source.content());
    return copy;
  }
  template <class List>
  Buffer& put(int rank, uint64_t count, List& list, size_t element) {
    Buffer& buffer = w_.add(rank, count, element);
    list.push_back(buffer.data());
    return buffer;
  }

  ReduceSpec any_spec() {
    ReduceSpec spec{};
    spec.in = spec.out = kKernelDTypes[random() % kKernelDTypes.size()];
    const bool is_float = std::count(kKernelFloats.begin(), kKernelFloats.end(), spec.in) != 0;
    if (is_float && random() % 2 == 0) spec.out = kKernelFloats[random() % kKernelFloats.size()];
    if (random() % 2 == 0) spec.divisor = n();
    if (is_float && random() % 3 == 0) spec.scale = 0.75;
    if (is_float && spec.in != spec.out && spec.out == DType::kFloat16) {
      spec.scale = std::ldexp(1.0, -20);  // within the range of fp16
    }
    return spec;
  }

  std::vector<Buffer*> inputs_of(const ReduceSpec& spec, uint64_t count, RankSources& inputs) {
    std::vector<Buffer*> buffers;
    for (int rank = 0; rank < n(); ++rank) {
      buffers.push_back(&put(rank, count, inputs[rank], size(spec.in)));
      buffers.back()->fill(random_values(spec.in, count, w_.random));
    }
    return buffers;
  }
  std::vector<char> reduced(const ReduceSpec& spec, const std::vector<Buffer*>& buffers,
                            uint64_t first, uint64_t count) const {
    std::vector<std::vector<char>> inputs;
    for (const Buffer* buffer : buffers) {
      inputs.push_back(slice(buffer->content(), first * size(spec.in), count * size(spec.in)));
    }
    return reference::reduce(spec.in, spec.out, inputs,
                             reference::Epilogue{spec.divisor, spec.scale});
  }

  std::string name(const char* operation) const { return concat(operation, " of ", n(), " ranks"); }
  std::string name(const char* operation, const ReduceSpec& spec) const {
    return concat(operation, " of ", n(), " ranks, ", dtype_name(spec.in), " to ",
                  dtype_name(spec.out), " / ", spec.divisor, " * ", spec.scale);
  }

  LocalWorld& w_;
  const uint64_t most_;
};

constexpr uint64_t kMost = kOnDevice ? 1 << 20 : 24 << 10;  // bytes of a tensor
constexpr int kSizes[] = {1, 2, 3, 4, 5, 8, 16};

/// Two rounds of all operations on one group, which are checked when all have been issued.
void random_operations(const std::vector<int>& devices, const DeviceSetOptions& options,
                       uint64_t seed, int repeats = 2) {
  PeerAccess access(probe_peers, true);
  LocalWorld world(devices, access, options, seed);
  Issuer issuer(world, kMost / (1 + devices.size() / 4));
  for (int repeat = 0; repeat < repeats; ++repeat) issuer.everything();
  world.finish();
}

#if defined(FC_SHIM)
template <class MakeLink>
void on_links(uint64_t seed, const MakeLink& link) {
  for (const int ranks : kSizes) {
    configure(ranks, link);
    random_operations(each_device(ranks), little_staging(), seed + ranks);
  }
}
#endif

CASE(direct) {
#if defined(FC_SHIM)
  on_links(seed, [](int, int) { return Link::kDirect; });
#else
  for (const int ranks : kSizes) random_operations(each_device(ranks), {}, seed + ranks);
#endif
}

CASE(staged) {
#if defined(FC_SHIM)
  on_links(seed, [](int, int) { return Link::kNone; });
#endif
  for (const int ranks : {2, 5}) {  // ranks of one device, staged on request, in larger memory
    DeviceSetOptions options = ranks == 2 ? DeviceSetOptions{} : little_staging();
    options.stage_all = true;
#if defined(FC_SHIM)
    configure(1, [](int, int) { return Link::kNone; });
#endif
    random_operations(std::vector<int>(ranks, 0), options, seed + ranks);
  }
}

CASE(mixed) {
#if defined(FC_SHIM)
  on_links(seed, [](int a, int b) { return a / 2 == b / 2 ? Link::kDirect : Link::kNone; });
  on_links(seed, [&](int a, int b) {
    return (a * b + a + b + seed) % 3 == 0 ? Link::kNone : Link::kDirect;
  });
#endif
}

/// Links that the driver grants but that give wrong bits: the probe must find them.
CASE(broken) {
#if defined(FC_SHIM)
  for (const Link link : {Link::kBrokenReads, Link::kLostWrites}) {
    configure(4, [&](int a, int b) { return a == 1 && b == 2 ? link : Link::kDirect; });
    random_operations(each_device(4), little_staging(), seed);
  }
#endif
}

CASE(repeated) {
#if defined(FC_SHIM)
  for (const std::vector<int>& devices :
       std::vector<std::vector<int>>{{0, 0}, {0, 1, 0}, {1, 1, 0, 2, 2, 1}}) {
    for (const Link link : {Link::kDirect, Link::kNone}) {
      configure(3, [&](int, int) { return link; });
      random_operations(devices, little_staging(), seed);
    }
  }
#else
  random_operations({0, 0, 0}, little_staging(), seed);
#endif
}

CASE(race) {
#if defined(FC_SHIM)
  for (const int ranks : {2, 3}) {
    for (const Link link : {Link::kDirect, Link::kNone}) {
      configure(ranks, [&](int, int) { return link; });
      random_operations(each_device(ranks), little_staging(), seed, 3);
    }
  }
  configure(4, [](int a, int b) { return a / 2 == b / 2 ? Link::kDirect : Link::kNone; });
  random_operations(each_device(4), little_staging(), seed);
#endif
}

/// Nothing is allocated once an operation has run.
CASE(warm) {
#if defined(FC_SHIM)
  configure(3, [](int a, int b) { return a + b == 1 ? Link::kDirect : Link::kNone; });
  PeerAccess access(probe_peers, true);
  LocalWorld world(each_device(3), access, little_staging(), seed);
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<std::vector<char*>> tensors(3);
  RankSources sources(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (const size_t bytes : {400'000, 308}) {
      buffers.push_back(std::make_unique<Buffer>(rank, bytes, 0, world.random));
      tensors[rank].push_back(buffers.back()->data());
      sources[rank].push_back(buffers.back()->data());
    }
  }
  const ReduceSpec spec{DType::kFloat32, DType::kFloat32, 0, 0};
  std::vector<CopyJob> jobs;
  for (const int t : {0, 1}) {
    const uint64_t bytes = t == 0 ? 400'000 : 308;
    jobs.push_back(CopyJob{1, tensors[1][t], bytes, {tensors[0][t], nullptr, tensors[2][t]}});
  }
  const auto once = [&] {
    world.exchange.reduce(sources, tensors[1], {100'000, 77}, spec, 1, world.streams);
    world.exchange.copy(jobs, world.streams);
  };
  once();
  const uint64_t before = shim::Runtime::get().allocations;
  for (int repeat = 0; repeat < 3; ++repeat) once();
  EXPECT(shim::Runtime::get().allocations == before, "memory or events");
  world.finish();
#endif
}

/// Threads that share a group, each with its own streams and tensors. Their operations take turns,
/// but wait for each other only where they use the same staging memory.
CASE(threads) {
#if defined(FC_SHIM)
  configure(3, [](int a, int b) { return a + b == 1 ? Link::kDirect : Link::kNone; });
#endif
  PeerAccess access(probe_peers, true);
  const auto group = std::make_shared<DeviceSet>(each_device(3), access, little_staging());
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      LocalWorld world(group, seed * 3 + caller);
      Issuer issuer(world, 50'000);
      for (int repeat = 0; repeat < 2; ++repeat) issuer.everything();
    });
  }
  for (std::thread& caller : callers) caller.join();
}

CASE(refused) {
#if defined(FC_SHIM)
  configure(2, [](int, int) { return Link::kDirect; });
#endif
  PeerAccess access(probe_peers, true);
  DeviceSet group(std::vector<int>(2, 0), access);
  Exchange exchange(group);
  ErrorCode code = ErrorCode::kSystem;
  std::string text = error_of([&] { exchange.copy({}, {nullptr}); }, &code);
  EXPECT(text.find("was given 1 streams") != std::string::npos, text);
  EXPECT(code == ErrorCode::kInvalidArgument, text);
  const ReduceSpec bytes{DType::kOther, DType::kOther, 0, 0};
  text = error_of([&] { exchange.reduce({{}, {}}, {}, {}, bytes, 1, {nullptr, nullptr}); }, &code);
  EXPECT(text.find("no CUDA kernel reduces bytes") != std::string::npos, text);
  EXPECT(code == ErrorCode::kUnsupported, text);
}

}  // namespace
}  // namespace fastcomm::testing

int main(int argc, char** argv) { return fastcomm::testing::run_cases(argc, argv); }
