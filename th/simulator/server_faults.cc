#include "th/simulator/server_faults.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/simulator/cluster.h"

namespace th {
namespace {

// A turn that takes long, but not so long that it would be taken for a pause.
constexpr absl::Duration kLongTurn = absl::Milliseconds(400);
constexpr absl::Duration kBetweenLongTurns = absl::Milliseconds(20);
// How long a server is away whose disk is restored.
constexpr absl::Duration kAwayForRestore = absl::Milliseconds(100);

// Above which a server begins whose disk says `on_disk`, where `passed` was the last one before.
Epoch BeginsAbove(EpochAfterLoss epoch, Epoch passed) {
  switch (epoch) {
    case EpochAfterLoss::kHigher:
      return passed;
    case EpochAfterLoss::kEqual:
      return Epoch(passed.value - 1);
    case EpochAfterLoss::kFromTheDisk:
      break;
  }
  return Epoch();
}

}  // namespace

SimulatedServer& ServerFaults::server() const { return cluster_->server(); }

void ServerFaults::Restart(absl::Duration away) {
  if (!server().alive()) return;
  server().Kill();
  cluster_->Post(away, [this] {
    if (!server().alive()) server().Start();
  });
}

void ServerFaults::Silence(absl::Duration lasting) {
  const std::string host = server().location().host;
  cluster_->CutHost(host);
  cluster_->Post(lasting, [this, host] { cluster_->HealHost(host); });
}

void ServerFaults::SlowDown(absl::Time until) {
  if (healed_ || cluster_->now() >= until) return;
  server().BeginLongTurn();
  cluster_->Post(kLongTurn, [this] { server().EndLongTurn(); });
  cluster_->Post(kLongTurn + kBetweenLongTurns, [this, until] { SlowDown(until); });
}

void ServerFaults::LoseState(absl::Duration away, EpochAfterLoss epoch) {
  ReplaceDisk(EmptyDisk(ClusterId(++disks_)), away, epoch);
}

void ServerFaults::RestoreState(absl::Duration later, EpochAfterLoss epoch) {
  cluster_->Post(later, [this, disk = server().disk(), epoch]() mutable {
    if (!healed_) ReplaceDisk(std::move(disk), kAwayForRestore, epoch);
  });
}

void ServerFaults::ReplaceDisk(ServerDisk disk, absl::Duration away, EpochAfterLoss epoch) {
  if (!server().alive()) return;
  cluster_->Trace([&] {
    return absl::StrCat("server: its disk knows of epoch ", disk.epoch.value, " now, not of ",
                        server().disk().epoch.value);
  });
  const Epoch above = BeginsAbove(epoch, server().disk().epoch);
  Restart(away);
  server().ReplaceDisk(std::move(disk), above);
}

void ServerFaults::HealAll() {
  healed_ = true;
  cluster_->HealHost(server().location().host);
  if (!server().alive()) server().Start();
  server().Continue();
}

}  // namespace th
