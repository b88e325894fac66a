#include "th/protocol/membership_secret.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <string>

#include "th/protocol/hmac.h"

namespace th {
namespace {

constexpr char kMembershipDomain[] = "tensorhub membership 1";

}  // namespace

bool operator==(const MembershipSecret& a, const MembershipSecret& b) {
  return CRYPTO_memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

MembershipSecret DeriveMembershipSecret(const ClusterKey& key, WorkerId worker, EpochId epoch_id) {
  std::string text(kMembershipDomain);
  AppendLittleEndian(worker.value, text);
  AppendLittleEndian(epoch_id.value, text);
  const std::array<uint8_t, 32> mac = HmacSha256(key.bytes, text);
  MembershipSecret secret;
  std::copy_n(mac.begin(), secret.bytes.size(), secret.bytes.begin());
  return secret;
}

}  // namespace th
