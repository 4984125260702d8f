// What options of the command line accept: "" or "expected ..., found ...", in the words of configuration errors.
// CLI11's own checks speak of types and print ranges of 300 digits.
#pragma once

#include <string>

namespace axial::app {

std::string check_device(const std::string& text);  // auto, cpu, cuda, cuda:N
std::string check_epochs(const std::string& text);  // a number above 0
std::string check_minutes(const std::string& text);  // a number above 0
std::string check_count(const std::string& text);   // an integer from 1
std::string check_seed(const std::string& text);    // what 64 bits hold
std::string check_not_empty(const std::string& text);
std::string check_output(const std::string& text);  // a path to write a file to; what lies there is looked at later

// A file's name must not promise another kind than what is written. Throws ConfigError where it has another ending
// than `ending` (".png", in any case); one without an ending is taken as it is.
void check_ending(const std::string& path, const std::string& ending);

}  // namespace axial::app
