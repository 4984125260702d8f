// Logging: everything but results goes to standard error and, once a run directory exists, to train.log.
// spdlog lives behind this header, in one source that does not see torch: torch's include folder bundles
// a newer fmt that shadows the one spdlog was built with.
#pragma once

#include <filesystem>
#include <string>

namespace axial::app::log {

enum class Level { kDebug, kInfo, kWarning, kError };

void set_level(Level level);
void open_file(const std::filesystem::path& path);  // appends; throws RunError
void close_file();
void write(Level level, const std::string& message);
inline void info(const std::string& message) { write(Level::kInfo, message); }
inline void warning(const std::string& message) { write(Level::kWarning, message); }
inline void error(const std::string& message) { write(Level::kError, message); }

// The progress line: redrawn in place on a terminal; elsewhere nothing (callers log plain lines now and
// then). Log lines written meanwhile do not garble it.
bool is_terminal();
void progress(const std::string& line);
void progress_done();

}  // namespace axial::app::log
