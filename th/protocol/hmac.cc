#include "th/protocol/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace th {

std::array<uint8_t, 32> HmacSha256(const std::array<uint8_t, 32>& key, const std::string& text) {
  std::array<uint8_t, 32> mac{};
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &length);
  return mac;
}

void AppendLittleEndian(uint64_t value, std::string& out) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

}  // namespace th
