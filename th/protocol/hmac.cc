#include "th/protocol/hmac.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <cstddef>
#include <memory>

namespace th {
namespace {

struct FreeMac {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
using MacContext = std::unique_ptr<EVP_MAC_CTX, FreeMac>;

// HMAC-SHA256 without a key, one for each thread: OpenSSL looks an algorithm up by its name and
// allocates a context, each of which takes longer than the two blocks that are summed here.
EVP_MAC_CTX* PreparedHmac() {
  thread_local const MacContext prepared = [] {
    EVP_MAC* const hmac = EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr);
    MacContext context(EVP_MAC_CTX_new(hmac));
    EVP_MAC_free(hmac);  // the context has a share of it
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end()};
    EVP_MAC_CTX_set_params(context.get(), parameters);
    return context;
  }();
  return prepared.get();
}

}  // namespace

std::array<uint8_t, 32> HmacSha256(const std::array<uint8_t, 32>& key, const std::string& text) {
  std::array<uint8_t, 32> mac{};
  size_t length = 0;
  EVP_MAC_CTX* const context = PreparedHmac();
  EVP_MAC_init(context, key.data(), key.size(), nullptr);  // whatever it has summed before is gone
  EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  EVP_MAC_final(context, mac.data(), &length, mac.size());
  return mac;
}

void AppendLittleEndian(uint64_t value, std::string& out) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

}  // namespace th
