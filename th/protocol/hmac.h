// Message authentication codes of short texts: HMAC-SHA256 (RFC 2104), OpenSSL's.
//
//   std::string text = "tensorhub capability 1";   // a text of its own for each use, so that none
//   AppendLittleEndian(worker.value, text);        // can ever be taken for another
//   const std::array<uint8_t, 32> mac = HmacSha256(key, text);
#ifndef TH_PROTOCOL_HMAC_H_
#define TH_PROTOCOL_HMAC_H_

#include <array>
#include <cstdint>
#include <string>

namespace th {

std::array<uint8_t, 32> HmacSha256(const std::array<uint8_t, 32>& key, const std::string& text);

void AppendLittleEndian(uint64_t value, std::string& out);

}  // namespace th

#endif  // TH_PROTOCOL_HMAC_H_
