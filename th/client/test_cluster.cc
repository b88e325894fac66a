#include "th/client/test_cluster.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "th/coordination/file_store.h"

namespace th::testing {
namespace {

std::string NewStateDir() {
  static std::atomic<int> next{0};
  const char* root = std::getenv("TEST_TMPDIR");
  return absl::StrCat(root == nullptr ? "/tmp" : root, "/state-", getpid(), "-", next++);
}

char ByteAt(uint64_t seed, size_t storage, size_t offset) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + storage * 0xbf58476d1ce4e5b9 + offset;
  x ^= x >> 31;
  x *= 0x94d049bb133111eb;
  return static_cast<char>(x >> 56);
}

}  // namespace

TestServer::TestServer(CallLimits calls) : state_dir_(NewStateDir()), calls_(calls) { Start(); }

TestServer::~TestServer() = default;

void TestServer::Stop() { server_.reset(); }

void TestServer::Start() {
  absl::StatusOr<std::unique_ptr<FileStore>> store = FileStore::Open(state_dir_);
  ASSERT_TRUE(store.ok()) << store.status();
  ServerOptions options;
  options.listen = address_;
  options.store = *std::move(store);
  options.calls = calls_;
  options.shutdown_grace = absl::Milliseconds(200);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  address_ = server_->address();
}

TestShard::TestShard(size_t bytes) {
  Add("embed", DType::kU8, {static_cast<int64_t>(bytes)}, bytes);
  Add("empty", DType::kF32, {0, 7}, 0);
  Add("norm", DType::kBF16, {33}, 66);
  Add("scale", DType::kF32, {}, 4);
  Add("zz_tail", DType::kU8, {5, 1001}, 5005);
  FillWith(0);
}

TestShard TestShard::Of(size_t count, size_t bytes) {
  TestShard shard{Empty{}};
  for (size_t i = 0; i < count; ++i) {
    shard.Add(absl::StrCat("model.layers.", i, ".weight"), DType::kU8,
              {static_cast<int64_t>(bytes)}, bytes);
  }
  return shard;
}

void TestShard::Add(std::string name, DType dtype, std::vector<int64_t> shape, size_t bytes) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = memory_.emplace_back(bytes).data();
  tensors.push_back(std::move(tensor));
}

void TestShard::FillWith(uint64_t seed) {
  for (size_t i = 0; i < memory_.size(); ++i) {
    for (size_t at = 0; at < memory_[i].size(); ++at) memory_[i][at] = ByteAt(seed, i, at);
  }
}

bool TestShard::HasContentOf(uint64_t seed) const {
  for (size_t i = 0; i < memory_.size(); ++i) {
    for (size_t at = 0; at < memory_[i].size(); ++at) {
      if (memory_[i][at] != ByteAt(seed, i, at)) return false;
    }
  }
  return true;
}

ClientOptions Rank(const TestServer& server, std::string group, uint32_t rank, uint32_t ranks) {
  ClientOptions options;
  options.server = server.address();
  options.run = "run";
  options.model = "model";
  options.group = std::move(group);
  options.rank = rank;
  options.ranks = ranks;
  return options;
}

std::vector<CatalogReplica> ListedCopies(Controller& controller) {
  std::vector<CatalogReplica> copies;
  const absl::StatusOr<Catalog> catalog = controller.List();
  EXPECT_TRUE(catalog.ok()) << catalog.status();
  if (!catalog.ok()) return copies;
  for (const CatalogModel& model : catalog->models) {
    for (const CatalogVersion& version : model.versions) {
      for (const CatalogReplica& replica : version.replicas) {
        if (IsTemporary(replica.role)) copies.push_back(replica);
      }
    }
  }
  return copies;
}

bool AllCopiesGo(Controller& controller) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    if (ListedCopies(controller).empty()) return true;
  }
  return false;
}

}  // namespace th::testing
