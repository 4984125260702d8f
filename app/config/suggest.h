// The nearest legal name for a key that does not exist.
#pragma once

#include <string>
#include <vector>

namespace axial::app {

// The one of `names` that `name` is a misspelling of; "" where none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& names);

// "; did you mean bfloat16?" where `value` is a misspelling of one of `names`, or what other programs call it (bf16,
// gpu, adam); else "".
std::string meant_value(const std::string& value, const std::vector<std::string>& names);

// "did you mean optim.lr?", "it belongs in another section: optim.lr", ... for an unknown `section`.`leaf`
// (section "" for a key at the top level); "" where none is near. On a command line `given` is what follows the key,
// "=0.1", and the answer is what to write: "write optim.lr=0.1".
std::string meant_key(const std::string& section, const std::string& leaf, const std::string& given = "");
// The same, or where all keys are listed.
std::string suggest_key(const std::string& section, const std::string& leaf, const std::string& given = "");

}  // namespace axial::app
