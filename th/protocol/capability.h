// The token without which a holder serves nothing.
//
// The server gives every worker a secret key at its join. For an assignment it mints a capability
// under the *source's* key, bound to reader, source buffer, version and epoch; the reader presents
// it when it opens a transfer, and the source checks it at that admission only, so that what was
// admitted outlives a restart of the server. MAC: HMAC-SHA256 (RFC 2104), cut to 16 bytes;
// OpenSSL's.
#ifndef TH_PROTOCOL_CAPABILITY_H_
#define TH_PROTOCOL_CAPABILITY_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "th/identifiers/identifiers.h"

namespace th {

// A worker's secret for the capabilities of its buffers; 32 bytes from the server.
struct CapabilityKey {
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const CapabilityKey&, const CapabilityKey&) = default;
};

struct CapabilityClaims {
  WorkerId reader;
  BufferAddress source;
  VersionSequence version;
  Epoch epoch;
  AssignmentId assignment;
  friend bool operator==(const CapabilityClaims&, const CapabilityClaims&) = default;
};

struct Capability {
  CapabilityClaims claims;
  std::array<uint8_t, 16> mac{};
  friend bool operator==(const Capability&, const Capability&) = default;
};

Capability MintCapability(const CapabilityKey& source_key, const CapabilityClaims& claims);

// The key of one worker, derived from the server's secret of this epoch: the server need not keep a
// key a worker, and no worker learns another's.
CapabilityKey DeriveWorkerKey(const CapabilityKey& server_secret, WorkerId worker);

// PERMISSION_DENIED when the MAC does not match (compared in constant time).
absl::Status VerifyCapability(const CapabilityKey& source_key, const Capability& capability);

}  // namespace th

#endif  // TH_PROTOCOL_CAPABILITY_H_
