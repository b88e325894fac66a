// The server's answer to "list" and "describe": a picture of one moment, for people and
// controllers. A caller that asks for one shard gets that alone.
#ifndef TH_PROTOCOL_CATALOG_H_
#define TH_PROTOCOL_CATALOG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "th/protocol/buffer_role.h"
#include "th/protocol/cost.h"
#include "th/protocol/event.h"
#include "th/protocol/messages.h"

namespace th {

struct CatalogRank {
  RankName name;
  WorkerId worker;
  std::string buffer_name;
  Location location;
  std::vector<Endpoint> endpoints;
  Digest layout;
  uint64_t bytes = 0;
  uint64_t bytes_held = 0;  // received and checked
  bool connected = true;
  absl::Duration since_heard;
  uint32_t readers = 0;           // that the server has assigned to it
  std::vector<RankName> sources;  // that it is filling from
  uint64_t snapshot_bytes = 0;    // of host memory that it is published from, not in place
  // Until the end of its notice (see Preempt). Infinite: it has none.
  absl::Duration leaves_in = absl::InfiniteDuration();
  TransportsUsed transports;  // by the last update; empty for what it published
  StallByPhase stall{};       // since it registered this buffer
};

// A group that holds, fills or publishes one version in one form.
struct CatalogReplica {
  std::string group;
  std::string buffer_name;
  std::string form;
  BufferRole role = BufferRole::kPrimary;
  std::string state;  // "publishing", "published", "filling", "complete", "leaving", "draining"
  bool publisher = false;
  std::vector<CatalogRank> ranks;
  // The operation that is under way, if any.
  EventId event;
  OperationKind operation = OperationKind::kPublish;  // meaningless without `event`
  absl::Duration operation_since;                     // its first rank asked
};

// Keeps a version fetchable (see PinVersion).
struct CatalogPin {
  std::string owner;
  std::string form;                                      // empty: every form
  absl::Duration expires_in = absl::InfiniteDuration();  // infinite: it stays until released
  friend bool operator==(const CatalogPin&, const CatalogPin&) = default;
};

struct CatalogVersion {
  VersionInfo info;
  bool published = false;
  bool sealed = false;
  bool withdrawn = false;
  uint64_t bytes = 0;  // of the distinct shards, once
  std::vector<SealedShard> shards;
  std::vector<CatalogPin> pins;
  // The forms in which the version is retained and nobody holds or receives it; an empty name: the
  // server does not know its forms. Empty while ranks may come back after a restart.
  std::vector<std::string> lost_forms;
  std::vector<CatalogReplica> replicas;
};

struct CatalogModel {
  ModelKey key;
  Lineage lineage;
  VersionSequence high_water;  // what `latest` does not fall behind
  uint32_t keep_latest = 0;    // of forms without an entry in the next field
  std::map<std::string, uint32_t> keep_latest_of_form;
  std::vector<CatalogVersion> versions;  // newest first
  std::vector<CatalogReplica> idle;      // groups with registered buffers that hold nothing
  ModelTotals totals;                    // since the server's start
};

struct Catalog {
  Epoch epoch;
  // The server has restarted, and ranks that held something before may still come back.
  bool recovering = false;
  std::vector<CatalogModel> models;
};

// Which shard a streaming reader means: that of a rank, or the only one that a version has.
struct ShardQuery {
  ModelKey key;
  VersionSelector selector = LatestVersion{};  // meaningless with a group
  std::string form = kDefaultForm;
  std::string group;  // empty: the only shard of the version
  Rank rank;          // of the group
};

// The answer: a layout, or why the version has none to receive.
struct FoundShard {
  NotAvailableReason not_available = NotAvailableReason::kNone;
  Digest layout;  // empty unless not_available is kNone
};

// The server's answer to a group that asks who is to make a form of a version.
enum class FormMaker : uint8_t {
  kNobody = 1,   // nobody need make it: it is offered
  kAsker = 2,    // the group that asks
  kAnother = 3,  // a group that was chosen before
};

// A group asks who is to make the form, and offers to do so within `claim`; zero gives back what it
// was chosen for.
struct FormQuery {
  ModelKey key;
  VersionSelector selector = LatestVersion{};
  std::string form;
  std::string group;
  absl::Duration claim;
};

struct FormChoice {
  VersionInfo version;
  FormMaker maker = FormMaker::kNobody;
  std::string group;  // that is to make it; empty: nobody need
};

// The bytes that all its ranks hold of their shards, and the bytes of those shards.
uint64_t HeldBytes(const CatalogReplica& replica);
uint64_t AllBytes(const CatalogReplica& replica);

// Null: the server that listed it knows no such model. Lives as long as `catalog`.
const CatalogModel* FindModel(const Catalog& catalog, const ModelKey& key);

}  // namespace th

#endif  // TH_PROTOCOL_CATALOG_H_
