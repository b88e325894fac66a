// A worker of one rank with one buffer, and an update that runs in the background, for tests.
#ifndef TH_CLIENT_TEST_WORKER_H_
#define TH_CLIENT_TEST_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"
#include "th/client/client.h"
#include "th/client/test_cluster.h"

namespace th::testing {

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

inline VersionSelector Label(absl::string_view text) { return VersionLabel::Parse(text).value(); }

// One rank with one buffer. The order of the members is that of a caller's: buffers end first.
struct Worker {
  static Worker Make(const TestServer& server, std::string group, TestShard shard = TestShard(),
                     uint64_t uplink = 0) {
    ClientOptions options = Rank(server, std::move(group));
    options.uplink_bytes_per_second = uplink;
    if (uplink > 0) options.transports = {"tcp"};  // which the cap holds back
    return Make(options, std::move(shard));
  }
  static Worker Make(const ClientOptions& options, TestShard shard = TestShard(),
                     RegisterOptions registered = {}) {
    Worker worker{std::move(shard), nullptr, {}};
    auto client = Client::Join(options);
    EXPECT_OK(client.status());
    if (!client.ok()) return worker;
    worker.client = *std::move(client);
    auto buffer = worker.client->Register(worker.shard.tensors, registered);
    EXPECT_OK(buffer.status());
    if (buffer.ok()) worker.buffer = *std::move(buffer);
    return worker;
  }

  absl::Status PublishAndWait(int64_t step, PublishOptions options = {}) {
    TH_RETURN_IF_ERROR(buffer.Publish(step, std::move(options)));
    return buffer.AwaitPublished().status();
  }

  TestShard shard;
  std::unique_ptr<Client> client;
  WeightBuffer buffer;
};

// Runs an update in the background and keeps its result.
class BackgroundUpdate {
 public:
  BackgroundUpdate(Worker& worker, UpdateOptions options = {}) {
    auto report = std::move(options.on_progress);
    options.on_progress = [this, report](const UpdateProgress& progress) {
      if (report) report(progress);
      if (progress.bytes_received > 0 && !under_way.HasBeenNotified()) under_way.Notify();
    };
    worker.buffer.UpdateAsync(Latest(), options, [this](absl::StatusOr<UpdateResult> updated) {
      result = std::move(updated);
      done.Notify();
    });
  }
  const absl::StatusOr<UpdateResult>& Wait() {
    if (!done.WaitForNotificationWithTimeout(kPatience)) {
      ADD_FAILURE() << "the update hangs";
      std::abort();  // it would write into what is gone
    }
    return result;
  }

  absl::Notification under_way;
  absl::Notification done;
  absl::StatusOr<UpdateResult> result = absl::UnknownError("not yet");
};

inline constexpr size_t kSlowBytes = 12'000'000;
inline constexpr uint64_t kSlowUplink = 8'000'000;  // one and a half seconds

}  // namespace th::testing

#endif  // TH_CLIENT_TEST_WORKER_H_
