#include "th/protocol/capability.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "th/protocol/hmac.h"

namespace th {
namespace {

// Both MACs start with a text of their own, so that neither can ever be taken for the other.
constexpr char kCapabilityDomain[] = "tensorhub capability 1";
constexpr char kWorkerKeyDomain[] = "tensorhub worker key 1";

std::string Encode(const CapabilityClaims& claims) {
  std::string text(kCapabilityDomain);
  for (uint64_t field :
       {claims.reader.value, claims.source.worker.value, uint64_t{claims.source.buffer.value},
        claims.version.value, uint64_t{claims.epoch.value}, claims.assignment.value}) {
    AppendLittleEndian(field, text);
  }
  return text;
}

}  // namespace

Capability MintCapability(const CapabilityKey& source_key, const CapabilityClaims& claims) {
  Capability capability{.claims = claims};
  const std::array<uint8_t, 32> mac = HmacSha256(source_key.bytes, Encode(claims));
  std::copy_n(mac.begin(), capability.mac.size(), capability.mac.begin());
  return capability;
}

CapabilityKey DeriveWorkerKey(const CapabilityKey& server_secret, WorkerId worker) {
  std::string text(kWorkerKeyDomain);
  AppendLittleEndian(worker.value, text);
  return CapabilityKey{.bytes = HmacSha256(server_secret.bytes, text)};
}

absl::Status VerifyCapability(const CapabilityKey& source_key, const Capability& capability) {
  const Capability expected = MintCapability(source_key, capability.claims);
  if (CRYPTO_memcmp(expected.mac.data(), capability.mac.data(), expected.mac.size()) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "the capability of reader worker ", capability.claims.reader.value, " for buffer ",
      capability.claims.source.buffer.value, " of worker ", capability.claims.source.worker.value,
      " was not made by this holder's server; ask the server for a new assignment"));
}

}  // namespace th
