#include "th/client/served_readers.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

namespace th {

void ServedReaders::Ask(const AdmissionRequest& request, Decide decide) {
  const CapabilityClaims& claims = request.capability.claims;
  waiting_[request.transfer] = {
      .buffer = request.buffer,
      .decide = std::move(decide),
      .report = {.event = EventOf(claims), .reader = claims.reader, .version = claims.version}};
}

std::optional<ServedReaders::Answer> ServedReaders::Decided(
    const AdmissionDecided& decided, absl::FunctionRef<BufferPtr(BufferId)> find) {
  auto found = waiting_.extract(decided.transfer);
  if (found.empty()) return std::nullopt;
  Waiting& waiting = found.mapped();
  Answer answer{std::move(waiting.decide), {decided.status, nullptr, decided.generation}};
  Admission& admission = answer.admission;
  const BufferPtr buffer = find(waiting.buffer);
  if (admission.status.ok() && buffer == nullptr) {
    admission.status = absl::UnavailableError("the buffer is gone");
  }
  ReaderReport report = std::move(waiting.report);
  ++(admission.status.ok() ? counted_.admitted : counted_.refused);
  if (admission.status.ok()) {
    admission.store = buffer->store();
    if (!waiting.released) served_[decided.transfer] = {.buffer = buffer, .report = report};
  } else {
    report.what = ReaderReport::What::kRefused;
  }
  report.refusal = admission.status;
  Report(std::move(report));
  return answer;
}

std::vector<ServedReaders::Decide> ServedReaders::TakeWaiting() {
  std::vector<Decide> decides;
  for (auto& [transfer, waiting] : std::exchange(waiting_, {})) {
    decides.push_back(std::move(waiting.decide));
  }
  return decides;
}

void ServedReaders::NoteSent(TransferId transfer, uint64_t bytes) {
  const auto found = served_.find(transfer);
  if (found == served_.end()) return;
  Served& served = found->second;
  if (bytes > served.bytes) {
    served.buffer->bytes_sent() += bytes - served.bytes;
    counted_.bytes_sent += bytes - served.bytes;
  }
  served.bytes = bytes;
}

void ServedReaders::NoteReleased(TransferId transfer, uint64_t bytes, const std::string& why) {
  if (const auto waiting = waiting_.find(transfer); waiting != waiting_.end()) {
    waiting->second.released = true;
  }
  NoteSent(transfer, bytes);
  auto served = served_.extract(transfer);
  if (served.empty()) return;
  ReaderReport& report = served.mapped().report;
  report.what = ReaderReport::What::kReleased;
  report.bytes_sent = bytes;
  report.why_ended = why;
  Report(std::move(report));
}

ServedFigures ServedReaders::figures() const {
  ServedFigures figures = counted_;
  figures.now = served_.size();
  return figures;
}

std::vector<TransferId> ServedReaders::ReadersOf(const LocalBuffer* buffer) const {
  std::vector<TransferId> transfers;
  for (const auto& [transfer, served] : served_) {
    if (served.buffer.get() == buffer) transfers.push_back(transfer);
  }
  return transfers;
}

bool ServedReaders::IsRead(const LocalBuffer* buffer) const {
  return std::any_of(served_.begin(), served_.end(),
                     [buffer](const auto& entry) { return entry.second.buffer.get() == buffer; });
}

void ServedReaders::Report(ReaderReport report) const {
  if (reporter_ != nullptr) reporter_->Report(std::move(report));
}

}  // namespace th
