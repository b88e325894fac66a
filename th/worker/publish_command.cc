// tensorhub_worker publish: holds a checkpoint folder and offers it until it is told to stop.
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "th/client_flags/connection_flags.h"
#include "th/command_line/exit_status.h"
#include "th/command_line/quantity.h"
#include "th/command_line/stop_signals.h"
#include "th/status/status_macros.h"
#include "th/transfer/monotonic_clock.h"
#include "th/worker/command.h"
#include "th/worker/metrics_page.h"
#include "th/worker/publisher.h"
#include "th/worker/retention_losses.h"

namespace th {
namespace {

// The interval at which Hold checks that the version is still held.
constexpr absl::Duration kHeldPoll = absl::Milliseconds(500);
// AwaitSealed warns once when the server has no checksums after this time.
constexpr absl::Duration kLateSeal = absl::Minutes(1);
// The interval at which AwaitSealed checks for a stop request.
constexpr absl::Duration kStopPoll = absl::Milliseconds(50);

struct PublishFlags {
  ConnectionFlags connection;
  MemberFlags member{.group = "trainer"};
  std::string folder;
  std::string label;
  std::string form = kDefaultForm;
  std::vector<std::string> attributes;
  uint32_t ranks = 1;
  uint32_t shards = 0;
  std::optional<uint32_t> rank;
  absl::Duration timeout = absl::Seconds(60);
  absl::Duration drain = absl::Seconds(30);
  bool exit_on_loss = false;
  std::string http;
};

ExitStatus Fail(const absl::Status& status, ExitStatus exit) {
  LOG(ERROR) << status.message();
  return exit;
}

absl::Status CheckRanks(const PublishFlags& flags) {
  if (flags.rank && *flags.rank >= flags.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--rank ", *flags.rank,
                                                   " is outside the group: --ranks is ",
                                                   flags.ranks, " and ranks count from 0"));
  }
  if (flags.shards > flags.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--shards ", flags.shards,
                                                   " cannot be held by --ranks ", flags.ranks,
                                                   ": give at least as many ranks"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PublisherOptions> OptionsOf(const PublishFlags& flags) {
  TH_RETURN_IF_ERROR(CheckRanks(flags));
  TH_RETURN_IF_ERROR(VersionLabel::Parse(flags.label).status());
  PublisherOptions options{.folder = flags.folder,
                           .ranks = flags.ranks,
                           .shards = flags.shards,
                           .rank = flags.rank,
                           .form = flags.form};
  TH_ASSIGN_OR_RETURN(options.client, flags.member.ToClientOptions(flags.connection));
  return options;
}

void LeaveInOrder(const PublishFlags& flags, Publisher& publisher) {
  if (const absl::Duration grace = flags.member.preempt_grace; grace > absl::ZeroDuration()) {
    LOG(INFO) << "leaving in " << absl::FormatDuration(grace) << "; readers move to other sources";
    const absl::Status left = publisher.Preempt(absl::Now() + grace);
    LOG_IF(WARNING, !left.ok()) << "leaving: " << left.message();
    return;
  }
  LOG(INFO) << "draining; " << FormatBytes(publisher.bytes_sent()) << " were sent to readers";
  const absl::Status drained = publisher.Drain(flags.drain);
  LOG_IF(WARNING, !drained.ok()) << "draining: " << drained.message();
}

void LeaveAndLogLosses(const PublishFlags& flags, Publisher& publisher) {
  RetentionLosses losses(flags.connection, flags.member.group);
  LeaveInOrder(flags, publisher);
  losses.Log();
}

// OK when told to stop; else the reason why the version is published no longer.
absl::Status Hold(Publisher& publisher, StopSignals& stop) {
  while (!stop.WaitFor(kHeldPoll)) TH_RETURN_IF_ERROR(publisher.CheckHeld());
  return absl::OkStatus();
}

// Waits for the other ranks of the group; nullopt when a stop comes before them.
std::optional<absl::StatusOr<VersionInfo>> Publish(const PublishFlags& flags,
                                                   const Attributes& attributes,
                                                   Publisher& publisher, StopSignals& stop) {
  PendingResult<absl::StatusOr<VersionInfo>> pending(&stop);
  std::thread publishing([&, done = pending.Callback()] {
    done(publisher.Publish(flags.label, attributes, flags.timeout));
  });
  std::optional<absl::StatusOr<VersionInfo>> version = pending.Await();
  if (!version) publisher.Abandon();
  publishing.join();
  return version;
}

// OK once sealed or when a stop is requested. Sums of a large shard take minutes, and the server
// may be away for as long: readers may have come already, so what is published is held meanwhile.
absl::Status AwaitSealed(Publisher& publisher, const StopSignals& stop) {
  const absl::Time late = MonotonicNow() + kLateSeal;
  for (bool said = false;;) {
    const absl::Status sealed = publisher.AwaitSealed(kStopPoll);
    if (stop.requested()) return absl::OkStatus();
    if (!absl::IsDeadlineExceeded(sealed)) return sealed;
    if (said || MonotonicNow() < late) continue;
    said = true;
    LOG(WARNING) << "published, and the server has no checksums of it after " << kLateSeal
                 << ": it is away, or they take long; readers cannot finish before it has them";
  }
}

// Publishes again where a rank of the group, in another process, is gone or replaced: what the
// others hold is no whole version then. Each loss may take --timeout to be made good.
ExitStatus PublishAndHold(const PublishFlags& flags, const Attributes& attributes,
                          Publisher& publisher, StopSignals& stop) {
  // From here on readers may come.
  stop.HoldOff();
  absl::Time give_up = MonotonicNow() + flags.timeout;
  for (bool lost_before = false;;) {
    const auto version = Publish(flags, attributes, publisher, stop);
    if (!version) {
      LOG(INFO) << "stopped before the version was published";
      return ExitStatus::kOk;
    }
    absl::Status outcome = version->status();
    const ExitStatus if_failed = outcome.ok() ? ExitStatus::kFailed : ExitStatusOf(outcome);
    if (outcome.ok()) outcome = AwaitSealed(publisher, stop);
    if (outcome.ok() && !stop.requested()) {
      // Scripts read this line: stdout has one for each time that the version is published.
      std::cout << "published " << flags.connection.key().ToString()
                << " version=" << (*version)->ToString() << std::endl;
      outcome = Hold(publisher, stop);
      give_up = MonotonicNow() + flags.timeout;
    }
    if (outcome.ok()) {
      LeaveAndLogLosses(flags, publisher);
      return ExitStatus::kOk;
    }
    const bool lost = Publisher::MayPublishAgain(outcome);
    // The first publish after a loss may be refused as out of step; the next one is in step.
    const bool again = lost || (lost_before && Publisher::IsOutOfStep(outcome));
    lost_before = lost;
    if (flags.exit_on_loss || !again || MonotonicNow() > give_up) return Fail(outcome, if_failed);
    LOG(WARNING) << outcome.message();
    LOG(INFO) << "publishing " << flags.label << " again";
  }
}

ExitStatus RunPublish(const PublishFlags& flags) {
  StopSignals stop(static_cast<int>(ExitStatus::kOk));
  const absl::StatusOr<PublisherOptions> options = OptionsOf(flags);
  if (!options.ok()) return Fail(options.status(), ExitStatus::kUsage);
  const absl::StatusOr<Attributes> attributes = ParseAttributes(flags.attributes);
  if (!attributes.ok()) return Fail(attributes.status(), ExitStatus::kUsage);
  const auto metrics = ServeMetrics(flags.http);
  if (!metrics.ok()) return Fail(metrics.status(), ExitStatus::kFailed);
  const absl::StatusOr<std::unique_ptr<Publisher>> publisher = Publisher::Load(*options);
  if (!publisher.ok()) return Fail(publisher.status(), ExitStatus::kLocalFiles);
  if (const absl::Status joined = (*publisher)->Join(); !joined.ok()) {
    return Fail(ExplainJoin(joined), ExitStatusOfJoin(joined));
  }
  LOG(INFO) << absl::StrJoin((*publisher)->ranks(), ", ") << " hold "
            << FormatBytes((*publisher)->bytes()) << " of " << flags.folder;
  return PublishAndHold(flags, *attributes, **publisher, stop);
}

}  // namespace

void AddPublishCommand(CLI::App* app, ExitStatus* exit) {
  auto flags = std::make_shared<PublishFlags>();
  CLI::App* publish = app->add_subcommand(
      "publish", "hold a folder of safetensors and offer it as a version until SIGTERM or SIGINT");
  publish->add_option("--dir", flags->folder, "the folder (or one safetensors file)")->required();
  publish->add_option("--label", flags->label, "the version's name, like step-57")->required();
  publish->add_option("--form", flags->form, "the form of the weights")->capture_default_str();
  publish->add_option("--attributes", flags->attributes, "key=value pairs for readers");
  publish
      ->add_option("--ranks", flags->ranks,
                   "ranks of the group; without --rank this process runs all of them")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  publish->add_option("--rank", flags->rank, "run only this rank of the group");
  publish->add_option("--shards", flags->shards, "distinct shards; 0: one a rank")
      ->capture_default_str();
  AddDurationFlag(publish, "--timeout", &flags->timeout, kTimeouts,
                  "the time, like 60s, for all ranks of the group to publish");
  AddDurationFlag(publish, "--drain", &flags->drain, {absl::ZeroDuration(), kTimeouts.most},
                  "the time, like 30s, that readers in flight have to finish at the end");
  publish->add_flag("--exit-on-loss", flags->exit_on_loss,
                    "end with status 1 when a rank of the group in another process is gone or "
                    "replaced, instead of publishing again");
  AddConnectionFlags(publish, &flags->connection);
  AddMemberFlags(publish, &flags->member);
  AddPreemptFlag(publish, &flags->member);
  AddHttpFlag(publish, &flags->http);
  publish->callback([flags, exit] { *exit = RunPublish(*flags); });
}

}  // namespace th
