// How long does Client::Attach take, whatever the size, and how fast is the first full read of what
// was attached, against that of private memory whose pages are there?
//
//   bazel run -c opt //th/client:attach_benchmark
//
// The server and the holder are in one process, the reader in another. Medians; of the attach the
// least too, which depends less on what else the machine does.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "th/client/arena_shard.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"

namespace th {
namespace {

using ::th::testing::ArenaShard;

constexpr int kTimes = 21;
constexpr size_t kTensors = 16;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

double Milliseconds(const std::function<void()>& work) {
  const absl::Time begin = absl::Now();
  work();
  return absl::ToDoubleMilliseconds(absl::Now() - begin);
}

// Reads all of it, at the speed of the memory: wide loads, and nothing that waits for the one
// before.
__attribute__((target_clones("avx2", "default"))) uint64_t Read(const std::byte* data,
                                                                uint64_t bytes) {
  constexpr uint64_t kWords = 16;
  uint64_t checksums[kWords] = {};
  const auto* const words = reinterpret_cast<const uint64_t*>(data);
  for (uint64_t i = 0; i < bytes / sizeof(uint64_t); i += kWords) {
    for (uint64_t k = 0; k < kWords; ++k) checksums[k] += words[i + k];
  }
  uint64_t checksum = 0;
  for (const uint64_t each : checksums) checksum += each;
  return checksum;
}

void Hold(int control, uint64_t bytes) {
  testing::TestServer server;
  // A virtual machine is given its memory when it first touches it, which takes longer than all
  // that is measured here: the arena comes after others of its size.
  for (int i = 0; i < 3; ++i) const ArenaShard touched(kTensors, bytes / kTensors);
  ArenaShard shard(kTensors, bytes / kTensors);
  shard.FillWith(1);
  const ClientOptions options = testing::Rank(server, "trainer");
  const auto client = Client::Join(options);
  auto buffer = (*client)->Register(shard.tensors);
  const bool published = buffer->Publish(1).ok() && buffer->AwaitSealed(absl::Minutes(1)).ok();
  const std::string address = published ? server.address() : "";
  (void)!write(control, address.data(), address.size());
  char end = 0;
  (void)!read(control, &end, 1);
}

void ReadAttached(const std::string& server, uint64_t bytes) {
  const auto client =
      Client::Join({.server = server, .run = "run", .model = "model", .group = "engine"});
  auto* const own = static_cast<std::byte*>(aligned_alloc(uint64_t{2} << 20, bytes));
  madvise(own, bytes, MADV_HUGEPAGE);
  std::memset(own, 1, bytes);
  std::vector<double> attach, again, first, second, private_read, detach;
  uint64_t checksum = 0;
  for (int i = 0; i < kTimes; ++i) {
    absl::StatusOr<AttachResult> result;
    attach.push_back(Milliseconds([&] { result = (*client)->Attach(Latest()); }));
    // As an engine does that follows: it knows the shard's layout from the version before.
    if (result.ok() && result->attached()) {
      AttachOptions known;
      known.layout = result->version->layout().digest();
      again.push_back(Milliseconds([&] { result = (*client)->Attach(Latest(), known); }));
    }
    if (!result.ok() || !result->attached()) {
      std::fprintf(stderr, "not attached: %s\n", result.status().ToString().c_str());
      std::exit(1);
    }
    const std::byte* const data = result->version->tensor(0).data;
    first.push_back(Milliseconds([&] { checksum += Read(data, bytes); }));
    private_read.push_back(Milliseconds([&] { checksum += Read(own, bytes); }));
    second.push_back(Milliseconds([&] { checksum += Read(data, bytes); }));
    detach.push_back(Milliseconds([&] { result->version.reset(); }));
  }
  std::printf(
      "%5llu MiB: attach %.3f ms (least %.3f), with the layout known %.3f ms (least %.3f); first "
      "read %.2f ms, second %.2f "
      "ms, private memory %.2f ms: "
      "first at %.2f of it; detach %.3f ms (%llx)\n",
      static_cast<unsigned long long>(bytes >> 20), Median(attach), Least(attach), Median(again),
      Least(again), Median(first), Median(second), Median(private_read),
      Median(private_read) / Median(first), Median(detach),
      static_cast<unsigned long long>(checksum & 0xf));
  std::free(own);
}

void Measure(uint64_t bytes) {
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) std::exit(1);
  // Each in a process of its own, made before there is any thread.
  const pid_t holder = fork();
  if (holder == 0) {
    close(control[0]);
    Hold(control[1], bytes);
    std::exit(0);
  }
  const pid_t reader = fork();
  if (reader == 0) {
    close(control[1]);
    char address[64] = {};
    if (read(control[0], address, sizeof(address) - 1) <= 0) std::exit(1);
    ReadAttached(address, bytes);
    std::exit(0);
  }
  close(control[1]);
  waitpid(reader, nullptr, 0);
  close(control[0]);
  waitpid(holder, nullptr, 0);
}

}  // namespace
}  // namespace th

int main() {
  for (const uint64_t mebibytes : {16, 1024}) th::Measure(mebibytes << 20);
  return 0;
}
