// The server's word about the root of a shard, which it recognizes after a restart.
//
// A server that restarts has forgotten the roots of all shards, and learns them from its workers
// again. A publisher may bring what it has summed itself, which the server before had not compared
// yet, or had refused. So the server hands out a receipt wherever it tells a root, and to every
// publisher of the shard as soon as the root is known. Workers keep the receipt of what they hold
// and show it when they announce that again (HeldVersion::receipt). The code is made under the key
// of the server's durable state: nobody else can make one.
//
//   const RootReceipt receipt =
//       MakeRootReceipt(key, {.model = model, .version = version, .layout = layout}, root);
//   IsGenuine(receipt, key, {.model = model, .version = version, .layout = layout});  // true
#ifndef TH_PROTOCOL_ROOT_RECEIPT_H_
#define TH_PROTOCOL_ROOT_RECEIPT_H_

#include <array>
#include <cstdint>
#include <string>

#include "th/identifiers/identifiers.h"
#include "th/protocol/membership_secret.h"
#include "th/weights/digest.h"
#include "th/weights/version.h"

namespace th {

struct RootReceipt {
  Digest root;
  std::array<uint8_t, 16> code{};
  // In constant time.
  friend bool operator==(const RootReceipt& a, const RootReceipt& b);
};

// The shard that a receipt is about. Sequences of versions are unique within a model of a cluster.
struct ReceiptSubject {
  ModelKey model;
  VersionSequence version;
  std::string form;
  Digest layout;
};

RootReceipt MakeRootReceipt(const ClusterKey& key, const ReceiptSubject& subject,
                            const Digest& root);
// True when a server of this key has told that root of that shard.
bool IsGenuine(const RootReceipt& receipt, const ClusterKey& key, const ReceiptSubject& subject);

}  // namespace th

#endif  // TH_PROTOCOL_ROOT_RECEIPT_H_
