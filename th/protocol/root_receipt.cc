#include "th/protocol/root_receipt.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "th/protocol/hmac.h"

namespace th {
namespace {

constexpr char kRootReceiptDomain[] = "tensorhub root receipt 1";

// Appends a text after its length, so that no two lists of texts look alike.
void AppendText(const std::string& text, std::string& out) {
  AppendLittleEndian(text.size(), out);
  out += text;
}

}  // namespace

bool operator==(const RootReceipt& a, const RootReceipt& b) {
  return a.root == b.root && CRYPTO_memcmp(a.code.data(), b.code.data(), a.code.size()) == 0;
}

RootReceipt MakeRootReceipt(const ClusterKey& key, const ReceiptSubject& subject,
                            const Digest& root) {
  std::string text(kRootReceiptDomain);
  AppendText(subject.model.run, text);
  AppendText(subject.model.model, text);
  AppendLittleEndian(subject.version.value, text);
  AppendText(subject.form, text);
  text.append(subject.layout.bytes.begin(), subject.layout.bytes.end());
  text.append(root.bytes.begin(), root.bytes.end());
  const std::array<uint8_t, 32> mac = HmacSha256(key.bytes, text);
  RootReceipt receipt{.root = root};
  std::copy_n(mac.begin(), receipt.code.size(), receipt.code.begin());
  return receipt;
}

bool IsGenuine(const RootReceipt& receipt, const ClusterKey& key, const ReceiptSubject& subject) {
  return receipt == MakeRootReceipt(key, subject, receipt.root);
}

}  // namespace th
