// th retain, th pin, th release: which versions are to stay fetchable.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "th/cli/catalog_view.h"
#include "th/cli/commands.h"
#include "th/cli/retention_note.h"
#include "th/client_flags/connection_flags.h"
#include "th/client_flags/flag_checks.h"
#include "th/command_line/reporter.h"
#include "th/command_line/stop_signals.h"

namespace th {
namespace {

std::string InForm(const std::string& form) {
  return form.empty() ? "" : absl::StrCat(" in form ", form);
}

constexpr DurationRange kPinTimes = {absl::ZeroDuration(), absl::Hours(366 * 24)};

struct RetentionFlags {
  ConnectionFlags connection;
  uint32_t keep_latest = 0;
  std::string version;
  std::string owner = "th";
  std::string form;
  absl::Duration expires_after;  // zero: never
  bool create = false;
  Reporter reporter;
};

// Reports the result, with what the user may have mistaken, if anything.
void Report(const RetentionFlags& flags, nlohmann::json object, std::string text,
            const std::string& note) {
  if (!note.empty()) {
    object["note"] = note;
    absl::StrAppend(&text, "; ", note);
  }
  flags.reporter.Report(object, text);
}

// A policy of a name that is mistaken would stay for ever and do nothing.
absl::Status CheckKnown(const RetentionFlags& flags, const Catalog& catalog) {
  const absl::Status named = CheckNamed(catalog, flags.connection.key());
  if (named.ok() || flags.create) return absl::OkStatus();
  return absl::Status(named.code(),
                      absl::StrCat(named.message(), "; --create sets it for a model to come"));
}

std::string PolicyText(const RetentionFlags& flags) {
  if (flags.keep_latest > 0) {
    return absl::StrCat(NewestVersionsAre(flags.keep_latest), " retained", InForm(flags.form));
  }
  return flags.form.empty() ? "no version is retained by policy"
                            : absl::StrCat("form ", flags.form,
                                           " has no policy of its own; that of the model holds");
}

ExitStatus RunRetain(const RetentionFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const ModelKey key = flags.connection.key();
  absl::StatusOr<Catalog> catalog = (*controller)->List();
  if (!catalog.ok()) return flags.reporter.Fail(catalog.status());
  if (const absl::Status known = CheckKnown(flags, *catalog); !known.ok()) {
    return flags.reporter.Fail(known);
  }
  const absl::Status retained = (*controller)->Retain(flags.keep_latest, flags.form);
  if (!retained.ok()) return flags.reporter.Fail(retained);
  catalog = (*controller)->List();
  const std::string note = catalog.ok() ? NoteOnPolicy(*catalog, key, flags.form) : "";
  Report(flags, {{"keep_latest", flags.keep_latest}, {"form", flags.form}},
         absl::StrCat(key.ToString(), ": ", PolicyText(flags)), note);
  return ExitStatus::kOk;
}

ExitStatus RunPin(const RetentionFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  const absl::StatusOr<VersionSelector> version = ParseVersionSelector(flags.version);
  if (!version.ok()) return flags.reporter.Fail(version.status(), ExitStatus::kUsage);
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::Duration expires =
      flags.expires_after > absl::ZeroDuration() ? flags.expires_after : absl::InfiniteDuration();
  const absl::StatusOr<VersionInfo> pinned =
      (*controller)->Pin(*version, flags.owner, expires, flags.form);
  if (!pinned.ok()) return flags.reporter.Fail(pinned.status());
  const absl::StatusOr<Catalog> catalog = (*controller)->List();
  const std::string note =
      catalog.ok() ? NoteOnPin(*catalog, flags.connection.key(), pinned->sequence, flags.form) : "";
  Report(flags,
         {{"version", pinned->label.text()},
          {"sequence", pinned->sequence.ToString()},
          {"owner", flags.owner},
          {"form", flags.form},
          {"expires_after_seconds", expires < absl::InfiniteDuration()
                                        ? nlohmann::json(absl::ToDoubleSeconds(expires))
                                        : nlohmann::json()}},
         absl::StrCat("version ", pinned->ToString(), " is pinned", InForm(flags.form), " by ",
                      flags.owner,
                      expires < absl::InfiniteDuration()
                          ? absl::StrCat(" for ", absl::FormatDuration(expires))
                          : ""),
         note);
  return ExitStatus::kOk;
}

// The version that the name stands for now, so that what is released is what is told. A number says
// it itself, also of a version that the server knows no more of.
absl::StatusOr<VersionInfo> Meant(Controller& controller, const VersionSelector& version) {
  const auto* sequence = std::get_if<VersionSequence>(&version);
  if (sequence != nullptr) return VersionInfo{.sequence = *sequence};
  return controller.Resolve(version);
}

ExitStatus RunRelease(const RetentionFlags& flags) {
  const StopSignals stop = flags.reporter.TakeSignals();
  const absl::StatusOr<VersionSelector> version = ParseVersionSelector(flags.version);
  if (!version.ok()) return flags.reporter.Fail(version.status(), ExitStatus::kUsage);
  auto controller = flags.connection.Connect();
  if (!controller.ok()) return flags.reporter.Fail(controller.status());
  const absl::StatusOr<VersionInfo> meant = Meant(**controller, *version);
  if (!meant.ok()) return flags.reporter.Fail(meant.status());
  const absl::Status released = (*controller)->Release(meant->sequence, flags.owner, flags.form);
  if (!released.ok()) return flags.reporter.Fail(released);
  flags.reporter.Report({{"released", flags.version},
                         {"version", meant->label.text()},
                         {"sequence", meant->sequence.ToString()},
                         {"owner", flags.owner},
                         {"form", flags.form}},
                        absl::StrCat("version ", meant->ToString(), " is no longer pinned",
                                     InForm(flags.form), " by ", flags.owner));
  return ExitStatus::kOk;
}

using RunRetention = ExitStatus (*)(const RetentionFlags&);

CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& help,
                     RunRetention run, const std::shared_ptr<RetentionFlags>& flags,
                     ExitStatus* exit) {
  CLI::App* command = app->add_subcommand(name, help);
  AddConnectionFlags(command, &flags->connection);
  flags->reporter.AddFlag(command);
  command
      ->add_option("--form", flags->form,
                   "only the weights in this form (default: every form; of retain: every one "
                   "without a count of its own)")
      ->check(IsName("form"));
  command->callback([flags, exit, run] { *exit = run(*flags); });
  return command;
}

void AddVersionAndOwner(CLI::App* command, RetentionFlags* flags) {
  command->add_option("version", flags->version, kVersionHelp)->required();
  command->add_option("--owner", flags->owner, "in whose name")
      ->check(IsName("owner"))
      ->capture_default_str();
}

}  // namespace

void AddRetentionCommands(CLI::App* app, ExitStatus* exit) {
  auto retain_flags = std::make_shared<RetentionFlags>();
  CLI::App* retain = AddCommand(app, "retain", "keep the newest versions of a model fetchable",
                                &RunRetain, retain_flags, exit);
  retain->add_option("count", retain_flags->keep_latest, "how many; 0: no policy")->required();
  retain->add_flag("--create", retain_flags->create,
                   "also of a model that the server does not know yet");

  auto pin_flags = std::make_shared<RetentionFlags>();
  CLI::App* pin = AddCommand(app, "pin", "keep one version fetchable", &RunPin, pin_flags, exit);
  AddVersionAndOwner(pin, pin_flags.get());
  AddDurationFlag(pin, "--expires-after", &pin_flags->expires_after, kPinTimes,
                  "the time after which it is no longer pinned, like 12h; 0: never");

  auto release_flags = std::make_shared<RetentionFlags>();
  CLI::App* release = AddCommand(app, "release", "undo a pin", &RunRelease, release_flags, exit);
  AddVersionAndOwner(release, release_flags.get());
}

}  // namespace th
