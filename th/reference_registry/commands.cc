#include "th/reference_registry/commands.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "th/reference_registry/models.h"
#include "th/reference_registry/roll_back.h"
#include "th/status/status_macros.h"

namespace th::registry {
namespace {

// An owner has one pin on a form of a version.
template <typename PinCommand>
bool IsOf(const DurablePin& pin, VersionSequence version, const PinCommand& command) {
  return pin.version == version && pin.owner == command.owner && pin.form == command.form;
}

// end() when there is none.
template <typename PinCommand>
auto FindPin(DurableModel& durable, VersionSequence version, const PinCommand& command) {
  return std::find_if(durable.pins.begin(), durable.pins.end(),
                      [&](const DurablePin& pin) { return IsOf(pin, version, command); });
}

template <typename PinCommand>
bool HasPin(const Model& model, VersionSequence version, const PinCommand& command) {
  return std::any_of(model.durable.pins.begin(), model.durable.pins.end(),
                     [&](const DurablePin& pin) { return IsOf(pin, version, command); });
}

absl::Status CheckForm(const std::string& form) {
  return form.empty() ? absl::OkStatus() : ValidateName("form", form);
}

absl::Status CanPin(const RegistryState& state, const ModelKey& key, const PinVersion& command) {
  TH_RETURN_IF_ERROR(ValidateName("owner", command.owner));
  TH_RETURN_IF_ERROR(CheckForm(command.form));
  if (command.expires_after <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pin of ", command.owner, " that expires after ",
                     absl::FormatDuration(command.expires_after), " would hold nothing"));
  }
  TH_ASSIGN_OR_RETURN(const Version* version, FindPublished(state, key, command.version));
  const Model& model = *version->model;
  if (HasPin(model, version->info.sequence, command) ||
      model.durable.pins.size() < state.limits.max_pins_per_model) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(key.ToString(), " has ", model.durable.pins.size(),
                   " pins, and max_pins_per_model is ", state.limits.max_pins_per_model));
}

// A pin outlives its version: one that nobody announced after a restart is released by its number.
bool IsPinnedByNumber(const RegistryState& state, const ModelKey& key, const ReleasePin& command) {
  const Model* model = FindModel(state, key);
  const auto* sequence = std::get_if<VersionSequence>(&command.version);
  return model != nullptr && sequence != nullptr && HasPin(*model, *sequence, command);
}

absl::Status CanRelease(const RegistryState& state, const ModelKey& key,
                        const ReleasePin& command) {
  if (IsPinnedByNumber(state, key, command)) return absl::OkStatus();
  TH_ASSIGN_OR_RETURN(const Version* version, FindPublished(state, key, command.version));
  if (HasPin(*version->model, version->info.sequence, command)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(command.owner, " has no pin on ",
                                          version->info.ToString(), " of ", key.ToString()));
}

absl::Status CanSetRetention(const RegistryState& state, const ModelKey& key,
                             const SetRetention& command) {
  TH_RETURN_IF_ERROR(ValidateName("run", key.run));
  TH_RETURN_IF_ERROR(ValidateName("model", key.model));
  TH_RETURN_IF_ERROR(CheckForm(command.form));
  const Model* model = FindModel(state, key);
  if (model == nullptr) return HasRoomForModel(state, key);
  const auto& forms = model->durable.keep_latest_of_form;
  if (command.form.empty() || forms.contains(command.form) || forms.size() < kMaxFormsRetained) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(key.ToString(), " has retention policies for ",
                                                   forms.size(), " forms, the most there may be"));
}

std::string FormText(const std::string& form) {
  return form.empty() ? "" : absl::StrCat(" form=", form);
}

std::string TextOf(const Model& model, VersionSequence sequence) {
  const Version* version = FindVersion(model, sequence);
  return (version == nullptr ? VersionInfo{.sequence = sequence} : version->info).ToString();
}

std::string PinText(const std::string& version, const DurablePin& pin) {
  return absl::StrCat(version, FormText(pin.form), " for ", pin.owner);
}

CommandFinished Pin(Turn& turn, const ModelKey& key, const PinVersion& command,
                    const std::string& asked_by) {
  const VersionInfo info = (*FindPublished(turn.state, key, command.version))->info;
  Model& model = *FindModel(turn.state, key);
  auto pin = FindPin(model.durable, info.sequence, command);
  if (pin == model.durable.pins.end()) {
    pin = model.durable.pins.insert(
        pin, {.version = info.sequence, .owner = command.owner, .form = command.form});
    Note(turn, key, {EventKind::kPinned, EventId(), asked_by}, PinText(info.ToString(), *pin));
  }
  pin->expires_at = turn.now + command.expires_after;
  ExpectExpiry(turn.state, model);
  Persist(turn, model);
  return {.version = info};
}

CommandFinished Release(Turn& turn, const ModelKey& key, const ReleasePin& command,
                        const std::string& asked_by) {
  VersionInfo info;
  if (const auto version = FindPublished(turn.state, key, command.version); version.ok()) {
    info = (*version)->info;
  } else {
    info.sequence = std::get<VersionSequence>(command.version);
  }
  Model& model = *FindModel(turn.state, key);
  const auto pin = FindPin(model.durable, info.sequence, command);
  Note(turn, key, {EventKind::kPinReleased, EventId(), asked_by}, PinText(info.ToString(), *pin));
  model.durable.pins.erase(pin);
  ExpectExpiry(turn.state, model);
  Persist(turn, model);
  return {.version = info};
}

CommandFinished SetKeepLatest(Turn& turn, const ModelKey& key, const SetRetention& command,
                              const std::string& asked_by) {
  Model& model = TakeModel(turn, key);
  Note(turn, key, {EventKind::kRetentionSet, EventId(), asked_by},
       absl::StrCat("the latest ", command.keep_latest, " are kept", FormText(command.form)));
  if (command.form.empty()) {
    model.durable.keep_latest = command.keep_latest;
  } else if (command.keep_latest == 0) {
    model.durable.keep_latest_of_form.erase(command.form);
  } else {
    model.durable.keep_latest_of_form[command.form] = command.keep_latest;
  }
  Persist(turn, model);
  return {};
}

CommandFinished RunRollBack(Turn& turn, const RollBackModel& roll_back, const std::string& id) {
  const VersionInfo to = roll_back.Apply(turn);
  Model& model = *FindModel(turn.state, roll_back.key);
  std::vector<DurableRollBackResult>& kept = model.durable.roll_back_results;
  kept.push_back({id, to.sequence, to.label.text(), model.durable.lineage});
  if (kept.size() > kMaxRollBackResultsKept) kept.erase(kept.begin());
  Persist(turn, model);
  return {.version = to};
}

// The result of a roll-back that ran under this key in an earlier epoch; null when none did.
const DurableRollBackResult* FindRollBackResult(const Model& model, const std::string& id) {
  for (const DurableRollBackResult& result : model.durable.roll_back_results) {
    if (result.idempotency_key == id) return &result;
  }
  return nullptr;
}

CommandFinished RestoreResult(const Model& model, const DurableRollBackResult& result) {
  CommandFinished finished{.idempotency_key = result.idempotency_key, .lineage = result.lineage};
  const Version* version = FindVersion(model, result.to);
  if (version != nullptr && version->announced) {
    finished.version = version->info;
    return finished;
  }
  finished.version.sequence = result.to;
  if (auto label = VersionLabel::Parse(result.label); label.ok()) finished.version.label = *label;
  return finished;
}

// As it was answered; without attributes where the version is not known any more.
CommandFinished RestoreResult(const Model& model, CommandFinished kept) {
  const Version* version = FindVersion(model, kept.version.sequence);
  if (version != nullptr) kept.version.attributes = version->info.attributes;
  return kept;
}

void Remember(Turn& turn, const ModelKey& key, const CommandFinished& finished) {
  Model* model = FindModel(turn.state, key);
  if (model == nullptr) return;
  CommandFinished& kept = model->commands[finished.idempotency_key];
  kept = finished;
  kept.version.attributes.clear();
  model->command_order.push_back(finished.idempotency_key);
  while (model->command_order.size() > turn.state.limits.max_commands_remembered) {
    model->commands.erase(model->command_order.front());
    model->command_order.pop_front();
  }
}

bool WorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

absl::Status CheckKey(const RunCommand& message) {
  const size_t bytes = message.idempotency_key.size();
  if (bytes > 0 && bytes <= kMaxIdempotencyKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "an idempotency key has 1 to ", kMaxIdempotencyKeyBytes, " bytes, this one has ", bytes));
}

}  // namespace

absl::Status ExecuteCommand::CanApply(const RegistryState& state) const {
  TH_RETURN_IF_ERROR(CheckKey(*message));
  const Command& command = message->command;
  if (const auto* pin = std::get_if<PinVersion>(&command)) return CanPin(state, key, *pin);
  if (const auto* release = std::get_if<ReleasePin>(&command)) {
    return CanRelease(state, key, *release);
  }
  if (const auto* roll_back = std::get_if<RollBack>(&command)) {
    return RollBackModel{key, *roll_back, caller}.CanApply(state);
  }
  if (std::holds_alternative<th::Forget>(command)) return CanForget(state, key);
  return CanSetRetention(state, key, std::get<SetRetention>(command));
}

CommandFinished ExecuteCommand::Apply(Turn& turn) const {
  const Command& command = message->command;
  if (const auto* pin = std::get_if<PinVersion>(&command)) return Pin(turn, key, *pin, asked_by);
  if (const auto* release = std::get_if<ReleasePin>(&command)) {
    return Release(turn, key, *release, asked_by);
  }
  if (const auto* roll_back = std::get_if<RollBack>(&command)) {
    return RunRollBack(turn, RollBackModel{key, *roll_back, caller, asked_by},
                       message->idempotency_key);
  }
  if (std::holds_alternative<th::Forget>(command)) {
    ForgetOnCommand(turn, key, asked_by);
    return {};
  }
  return SetKeepLatest(turn, key, std::get<SetRetention>(command), asked_by);
}

CommandFinished RunOnce(Turn& turn, const ModelKey& key, const RunCommand& message,
                        const Group* caller, const std::string& asked_by) {
  const Model* model = FindModel(turn.state, key);
  if (model != nullptr) {
    auto done = model->commands.find(message.idempotency_key);
    if (done != model->commands.end()) return RestoreResult(*model, done->second);
    const DurableRollBackResult* earlier = FindRollBackResult(*model, message.idempotency_key);
    if (earlier != nullptr) return RestoreResult(*model, *earlier);
  }
  const ExecuteCommand execute{key, &message, caller, asked_by};
  const absl::Status status = execute.CanApply(turn.state);
  CommandFinished finished;
  if (status.ok()) finished = execute.Apply(turn);
  finished.idempotency_key = message.idempotency_key;
  finished.status = status;
  if (Model* after = FindModel(turn.state, key)) {
    finished.lineage = after->durable.lineage;
    if (status.ok()) NoteUse(turn.state, *after, turn.now);
  }
  if (!WorthAnotherTry(status) && CheckKey(message).ok()) Remember(turn, key, finished);
  return finished;
}

void ExpirePins(Turn& turn) {
  auto& expiries = turn.state.pin_expiries;
  while (!expiries.empty() && expiries.begin()->first <= turn.now) {
    Model& model = *FindModel(turn.state, expiries.begin()->second);
    std::erase_if(model.durable.pins, [&](const DurablePin& pin) {
      if (pin.expires_at > turn.now) return false;
      Note(turn, model.key, {EventKind::kPinReleased},
           absl::StrCat(PinText(TextOf(model, pin.version), pin), ": its time has passed"));
      return true;
    });
    ExpectExpiry(turn.state, model);
    NoteUse(turn.state, model, turn.now);
    Persist(turn, model);
  }
}

}  // namespace th::registry
