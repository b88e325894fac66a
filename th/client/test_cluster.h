// The common parts of the client's tests: a reference server in this process, and shards in memory.
#ifndef TH_CLIENT_TEST_CLUSTER_H_
#define TH_CLIENT_TEST_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/client/client.h"
#include "th/server/server.h"

namespace th::testing {

// Long enough for a loaded machine; only failing tests wait for it.
inline constexpr absl::Duration kPatience = absl::Seconds(30);

// A server on loopback, at a port of the system's choice.
class TestServer {
 public:
  explicit TestServer(CallLimits calls = {});
  ~TestServer();

  const std::string& address() const { return address_; }
  void Stop();
  // At the same address, with what it kept on disk.
  void Start();

 private:
  const std::string state_dir_;
  const CallLimits calls_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<Server> server_;
};

// One shard's tensors, in memory of its own.
class TestShard {
 public:
  // A few tensors of uneven sizes (an empty one and a scalar too) and one of `bytes`.
  explicit TestShard(size_t bytes = 300'000);
  // `count` tensors of `bytes` each.
  static TestShard Of(size_t count, size_t bytes);
  TestShard(TestShard&&) = default;

  // Bytes that depend on `seed` and their place.
  void FillWith(uint64_t seed);
  bool Equals(const TestShard& other) const { return memory_ == other.memory_; }
  bool HasContentOf(uint64_t seed) const;

  std::vector<Tensor> tensors;
  std::vector<char>& storage(size_t index) { return memory_[index]; }

 private:
  struct Empty {};
  explicit TestShard(Empty) {}
  void Add(std::string name, DType dtype, std::vector<int64_t> shape, size_t bytes);

  std::vector<std::vector<char>> memory_;
};

// Options of a rank in the test's run and model.
ClientOptions Rank(const TestServer& server, std::string group, uint32_t rank = 0,
                   uint32_t ranks = 1);

// The copies in host memory that the server lists. A call that fails fails the test.
std::vector<CatalogReplica> ListedCopies(Controller& controller);
// False: one is still there after kPatience.
bool AllCopiesGo(Controller& controller);

}  // namespace th::testing

#endif  // TH_CLIENT_TEST_CLUSTER_H_
