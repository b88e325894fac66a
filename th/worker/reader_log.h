// The log lines of this process's members about transfers: a line for each reader that a rank
// admits, refuses or lets go, with the event that the reader and the server name too; and what of
// this host their transports do without.
//
//   ClientOptions options = ...;
//   options.on_reader = LogReaders("trainer/0");
//   ... Client::Join(options) ...
//   LogLeftOut(*client);
#ifndef TH_WORKER_READER_LOG_H_
#define TH_WORKER_READER_LOG_H_

#include <functional>
#include <string>

#include "th/client/client.h"

namespace th {

// "trainer/0: reader 30064771073 of #1.2 let go after 45.4 MB event=7-12". Pure.
std::string DescribeReader(const std::string& rank, const ReaderReport& report);

// `rank` names the source.
std::function<void(const ReaderReport&)> LogReaders(std::string rank);

// A line for each Client::left_out. Once a process: its clients share their transports.
void LogLeftOut(const Client& client);

}  // namespace th

#endif  // TH_WORKER_READER_LOG_H_
